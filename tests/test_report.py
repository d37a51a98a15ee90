"""Text and HTML say what the profile holds, and nothing a name contains can break the page."""

from __future__ import annotations

import base64
import dataclasses
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import jax
import jax.numpy as jnp
import pytest

from memscope.profile import Profile, profile
from memscope.report import html, text
from memscope.sizes import format_bytes

_VOID = {"meta", "br", "img", "line", "rect"}


def nearest(q: jax.Array, x: jax.Array) -> jax.Array:
    d = jnp.sum(q**2, 1)[:, None] - 2 * q @ x.T + jnp.sum(x**2, 1)
    return jax.lax.top_k(-d, 10)[1]


@pytest.fixture(scope="module")
def knn() -> Profile:
    return profile(nearest, jnp.ones((256, 16)), jnp.ones((5000, 16)))


class Page(HTMLParser):
    """Checks that tags nest, and keeps the text and the tags' names and attributes."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(source)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_first_lines_answer_the_question(knn: Profile) -> None:
    head = str(knn).splitlines()[:6]
    assert head[0] == f"nearest on cpu: peak {format_bytes(knn.peak_bytes)}"
    for word in ("arguments", "results", "temporaries"):
        assert word in head[1]
    plain, bound = knn.plain_peak_bytes, knn.plain_bound_bytes
    assert plain is not None
    assert bound is not None
    assert f"XLA reports {format_bytes(plain)} for a plain jax.jit" in head[2]
    assert format_bytes(bound) in head[2]
    assert "largest at the peak: 4.88 MiB  float32[256,5000]  dot_general at test_report.py:" in "\n".join(head)


def test_text_and_page_show_the_same_account(knn: Profile) -> None:
    page = Page(knn.to_html())
    for line in text.account(knn):
        assert line.strip() in page.text
    for buffer in knn.buffers[:5]:
        assert text.array(buffer) in page.text
        assert text.array(buffer) in str(knn)


def test_the_page_stands_alone(knn: Profile) -> None:
    page = Page(knn.to_html())
    assert {"script", "link", "img", "iframe"}.isdisjoint(tag for tag, _ in page.tags)
    assert "http" not in knn.to_html()
    assert "url(" not in knn.to_html()
    assert "@import" not in knn.to_html()
    assert any(tag == "svg" and attributes.get("role") == "img" for tag, attributes in page.tags)


def test_the_fragment_is_what_a_notebook_shows(knn: Profile) -> None:
    assert knn._repr_html_() == html.profile_fragment(knn)
    assert Page(knn._repr_html_()).tags[0] == ("div", {"class": "memscope"})


def test_chart_and_graph_are_images_where_svg_is_taken_away(knn: Profile) -> None:
    page = Page(html.profile_document(knn))
    image, graph = [attributes for tag, attributes in page.tags if tag == "img"]
    kind, _, data = str(image["src"]).partition(";base64,")
    assert kind == "data:image/svg+xml"
    root = ET.fromstring(base64.b64decode(data))
    assert "step 1" in [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert format_bytes(max(knn.timeline)) in str(image["alt"])
    assert "around the peak of nearest" in str(graph["alt"])


def test_names_are_escaped(knn: Profile) -> None:
    nasty = '<script>alert("1")</script>&\''
    buffers = tuple(dataclasses.replace(b, name=nasty, op=nasty, source=nasty, hlo=nasty) for b in knn.buffers)
    p = dataclasses.replace(
        knn,
        name=nasty,
        target=nasty,
        buffers=buffers,
        steps=(nasty,) * len(knn.steps),
        step_sources=(nasty,) * len(knn.steps),
        peak_path=tuple((nasty, b) for b in buffers[:3]),
    )
    page = Page(p.to_html())
    assert "script" not in {tag for tag, _ in page.tags}
    assert nasty in page.text


def test_a_long_schedule_keeps_its_peak(knn: Profile) -> None:
    timeline = [1000] * 5000
    timeline[3217] = 5000
    p = dataclasses.replace(
        knn,
        timeline=tuple(timeline),
        steps=tuple(f"op.{k}" for k in range(5000)),
        step_sources=(None,) * 5000,
        peak_step=3217,
    )
    assert 3217 in text.buckets(p, 60)
    assert len(text.buckets(p, 60)) == 60
    assert "step 3218 of 5000: op.3217" in str(p)
    assert "█" in str(p)
    Page(p.to_html())


def test_few_steps_are_all_shown(knn: Profile) -> None:
    assert text.buckets(knn, 60) == list(range(len(knn.timeline)))


def test_a_long_path_is_shortened(knn: Profile) -> None:
    p = dataclasses.replace(knn, peak_path=tuple((f"step.{k}", None) for k in range(100)))
    assert "88 more" in str(p)
    assert "step.99" in str(p)
    assert "step.50" not in str(p)


def test_lines_fit_a_terminal(knn: Profile) -> None:
    assert max(map(len, str(knn).splitlines())) <= 120
