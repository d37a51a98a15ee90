"""The HLO graph: what is in it, what is shown of it, where that goes, and how it is drawn."""

from __future__ import annotations

import base64
import itertools
import json
import re
import resource
import shutil
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from benchmarks.training import Sizes, arguments, training_step
from memscope.compile import Build, compile_program
from memscope.graph import Computation, Edge, HloGraph, Node
from memscope.layout import dot, layered
from memscope.layout.place import lay_out
from memscope.layout.plane import Layout, Size
from memscope.layout.shown import LONGEST, Shown, computation_view, node_view, peak_view, whole_view
from memscope.layout.skeleton import Skeleton, skeleton
from memscope.picture import picture
from memscope.profile import Profile, profile_compiled
from memscope.report import boxes
from memscope.report.graph import caption, graph_svg, legend
from memscope.target import resolve
from memscope.trace import trace
from memscope_jupyter.graph import graph_widget
from memscope_jupyter.graph.navigation import follow
from memscope_jupyter.graph.payload import index, picture_payload


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def nearest(q: jax.Array, x: jax.Array) -> jax.Array:
    d = jnp.sum(q**2, 1)[:, None] - 2 * q @ x.T + jnp.sum(x**2, 1)
    return jax.lax.top_k(-d, 10)[1]


def scanned(x: jax.Array, w: jax.Array) -> jax.Array:
    def step(c: jax.Array, t: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.tanh(c @ w + t)
        return h, jnp.sort(h, 0)

    c, ys = jax.lax.scan(step, x, jnp.arange(50.0))
    return ys[::2] + c


def branched(flag: jax.Array, x: jax.Array) -> jax.Array:
    return jax.lax.cond(flag, lambda c: jnp.sort(c @ c.T, 0), lambda c: c @ c.T * 2, x) + 1


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "knn": (nearest, (f32(256, 16), f32(5000, 16))),
    "scan": (scanned, (f32(310, 190), f32(190, 190))),
    "cond": (branched, (jax.ShapeDtypeStruct((), bool), f32(300, 200))),
    "several results": (lambda x: (jnp.sort(x), x @ x.T, {"a": x.sum()}), (f32(300, 200),)),
    "named": (lambda tree: tree["<b>\"&'"] @ tree["<b>\"&'"].T, ({"<b>\"&'": f32(50, 20)},)),
    "identity": (lambda x: x, (f32(10),)),
    "nothing": (lambda x: (), (f32(10),)),
    "no elements": (lambda x: (x @ x.T).sum(), (f32(0, 5),)),
    "no arguments": (lambda: jnp.sort(jnp.ones((300, 200)) * jnp.arange(200.0)), ()),
}


def reference(fn: Callable[..., Any], args: tuple[Any, ...]) -> Profile:
    program = trace(fn, args)
    return profile_compiled(program, compile_program(program, Build.REFERENCE, resolve(None)))


@pytest.fixture(scope="module")
def profiles() -> dict[str, Profile]:
    return {name: reference(fn, args) for name, (fn, args) in PROGRAMS.items()}


@pytest.fixture(params=PROGRAMS)
def one(request: pytest.FixtureRequest, profiles: dict[str, Profile]) -> Profile:
    return profiles[request.param]


@pytest.fixture(scope="module")
def training() -> Profile:
    """A training step of 12 small layers: forward, backward and Adam."""
    sizes = Sizes(layers=12, width=32, heads=4, hidden=64, words=50, batch=12, length=33)
    return reference(training_step(sizes), jax.eval_shape(lambda: arguments(sizes)))


# --- the data ---


def test_every_instruction_is_a_node_but_for_those_that_only_pass_on(one: Profile) -> None:
    module = one.graph_source.flow.module
    silent = {"tuple", "bitcast", "get-tuple-element", "parameter"}
    computing = {i.name for i in module.entry.instructions if i.opcode not in silent}
    drawn = {n.name for n in one.graph.entry.nodes}
    assert computing <= drawn
    assert {n.opcode for n in one.graph.entry.nodes}.isdisjoint({"tuple", "bitcast"})
    names = [n.name for n in one.graph.nodes]
    assert len(names) == len(set(names))


def test_edges_lead_forward_in_the_schedule(one: Profile) -> None:
    for computation in one.graph.computations:
        order = {n.name: k for k, n in enumerate(computation.nodes)}
        assert all(order[e.tail] < order[e.head] for e in computation.edges)
        heads = [order[e.head] for e in computation.edges]
        assert heads == sorted(heads)
        assert len({(e.tail, e.head) for e in computation.edges}) == len(computation.edges)


def test_a_node_holds_the_bytes_of_its_buffers(one: Profile) -> None:
    buffers = {b.name: b for b in one.buffers}
    for node in one.graph.nodes:
        assert node.bytes == sum(buffers[b].bytes for b in node.buffers)
        assert node.live_at_peak == any(buffers[b].live_at_peak and buffers[b].bytes for b in node.buffers)
    held = {b for n in one.graph.nodes for b in n.buffers}
    assert {b.name for b in one.buffers if b.bytes} <= held
    assert all(n.bytes == 0 for c in one.graph.computations if c.role == "fusion" for n in c.nodes)


def test_the_peak_path_is_marked(one: Profile) -> None:
    path = [name for name, _ in one.peak_path]
    assert [n.name for n in one.graph.nodes if n.on_peak_path and n.name not in path] == []
    assert {n.name for n in one.graph.nodes if n.on_peak_path} >= {one.graph.peak} - {None}
    steps = set(itertools.pairwise(path))
    for computation in one.graph.computations:
        assert all(((e.tail, e.head) in steps) == e.on_peak_path for e in computation.edges)


def test_what_feeds_what(profiles: dict[str, Profile]) -> None:
    entry = profiles["knn"].graph.entry
    by_op = {n.op: n.name for n in entry.nodes}
    edges = {(e.tail, e.head) for e in entry.edges}
    assert (by_op["dot_general"], by_op["neg"]) in edges
    assert (by_op["neg"], by_op["top_k"]) in edges
    assert entry.node[by_op["top_k"]].is_result
    assert entry.node[by_op["dot_general"]].source == f"{Path(__file__).name}:{nearest.__code__.co_firstlineno + 1}"
    largest = profiles["knn"].largest_at_peak
    assert largest is not None
    assert entry.node[by_op["dot_general"]].buffer == largest.name


def test_a_loop_opens_into_its_body_and_condition(profiles: dict[str, Profile]) -> None:
    graph = profiles["scan"].graph
    (loop,) = (n for n in graph.entry.nodes if n.opcode == "while")
    body, condition = (graph.by_name[name] for name in loop.opens)
    assert (body.role, condition.role) == ("body", "condition")
    assert body.caller == condition.caller == loop.name
    assert body.parent == graph.entry.name
    assert {"dot_general", "sort"} <= {n.op for n in body.nodes}
    state = [n for n in body.nodes if n.opcode == "get-tuple-element"]
    assert all(n.is_input for n in state)
    assert any(n.buffer == "w" for n in state)  # the loop reads the argument where it lies
    assert graph.home[graph.peak or ""] is body


def test_a_conditional_opens_into_its_branches(profiles: dict[str, Profile]) -> None:
    graph = profiles["cond"].graph
    (node,) = (n for n in graph.nodes if n.opcode == "conditional")
    branches = [graph.by_name[name] for name in node.opens]
    assert [b.role for b in branches] == ["branch", "branch"]
    assert any(n.op == "sort" for b in branches for n in b.nodes)


def test_a_fusion_opens_into_a_graph_of_its_own(profiles: dict[str, Profile]) -> None:
    graph = profiles["knn"].graph
    fusion = next(n for n in graph.entry.nodes if n.op == "neg")
    (inner,) = (graph.by_name[name] for name in fusion.opens)
    assert inner.role == "fusion"
    assert {"add", "sub", "neg"} <= {n.op for n in inner.nodes}
    assert sum(n.is_result for n in inner.nodes) == 1


def test_the_graph_is_built_once_and_is_no_part_of_the_json(profiles: dict[str, Profile]) -> None:
    p = profiles["knn"]
    assert p.graph is p.graph
    assert not {"graph", "graph_source"} & set(p.to_dict())
    json.dumps(p.to_dict())


# --- graphs made by hand ---


def made(edges: str, **fields: dict[str, Any]) -> HloGraph:
    """A graph out of "a-b b-c": nodes in the order in which they are named, `p...` and `c...` without an edge to."""
    pairs = [tuple(pair.split("-")) for pair in edges.split()]
    names = list(dict.fromkeys(itertools.chain.from_iterable(pairs))) or list(fields)
    nodes = tuple(
        Node(n, **{"opcode": "parameter" if n.startswith("p") else "add", "op": "add", "dtype": "float32",
                   "shape": (2,), **fields.get(n, {})})
        for n in names
    )  # fmt: skip
    order = {n: k for k, n in enumerate(names)}
    made_edges = tuple(Edge(*pair) for pair in sorted(pairs, key=lambda pair: order[pair[1]]))  # type: ignore[misc]
    return HloGraph((Computation("main", "entry", None, None, nodes, made_edges),), None)


def chain(length: int) -> str:
    return " ".join(f"n{k}-n{k + 1}" for k in range(length))


def drawn(shown: Shown) -> set[str]:
    return set(shown.nodes)


# --- what is shown ---


def test_the_peak_view_grows_outward_from_the_peak_path() -> None:
    path = {f"n{k}": {"on_peak_path": True} for k in (20, 21)}
    graph = made(chain(40), **path)
    assert drawn(peak_view(graph, 2)) == {"n20", "n21"}
    assert drawn(peak_view(graph, 6)) == {f"n{k}" for k in range(18, 24)}
    assert drawn(peak_view(graph)) == {n.name for n in graph.nodes}


def test_inputs_count_but_are_no_way_through() -> None:
    graph = made("p0-n0 p0-n1 p1-n1 p0-far", n0={"on_peak_path": True})
    assert drawn(peak_view(graph, 4)) == {"n0"}
    assert drawn(node_view(graph, "p1")) == {"n1"}
    assert drawn(node_view(graph, "p0")) == {"n0", "n1", "far"}


def test_few_boxes_all_stand_in_the_picture() -> None:
    pairs = made(" ".join(f"p{k}-n{k}" for k in range(20)), n3={"on_peak_path": True})
    assert drawn(peak_view(pairs)) == {f"n{k}" for k in range(20)}
    assert drawn(peak_view(pairs, 39)) == {"n3"}
    assert drawn(peak_view(made(" ".join(f"p{k}-n{k}" for k in range(21)), n3={"on_peak_path": True}))) == {"n3"}


def test_where_nothing_runs_the_caption_says_so() -> None:
    empty = picture(made(""), peak_view(made("")))
    assert caption(empty, "") == "XLA runs no instruction here."
    assert legend(empty) == ""


def test_the_largest_come_first_among_the_equally_far() -> None:
    graph = made("a-b a-c a-d", a={"on_peak_path": True}, c={"bytes": 8})
    assert drawn(peak_view(graph, 2)) == {"a", "c"}


def test_expanding_draws_all_neighbours_and_whole_draws_everything() -> None:
    graph = made("p0-a a-b b-c b-d", a={"on_peak_path": True})
    shown = peak_view(graph, 2)
    assert drawn(shown) == {"a"}
    assert shown.hidden == 3
    shown = shown.expanded("a")
    assert drawn(shown) == {"a", "b"}
    assert drawn(shown.expanded("b")) == {"a", "b", "c", "d"} == drawn(whole_view(graph.entry))
    assert whole_view(graph.entry).hidden == 0


def test_a_view_stays_within_its_budget(training: Profile) -> None:
    view = skeleton(peak_view(training.graph))
    assert 50 < sum(1 + len(box.inputs) for box in view.boxes) <= 300
    path = {n.name for n in training.graph.entry.nodes if n.on_peak_path and not n.is_input}
    assert path
    assert path <= {box.node.name for box in view.boxes}


def test_what_the_page_asks_for(profiles: dict[str, Profile]) -> None:
    graph = profiles["scan"].graph
    (loop,) = (n for n in graph.entry.nodes if n.opcode == "while")
    shown = peak_view(graph)
    assert shown.computation.role == "body"
    shown = follow(graph, shown, {"kind": "open", "name": graph.entry.name})
    assert loop.name in shown.nodes
    assert follow(graph, shown, {"kind": "open", "name": loop.opens[1]}).computation.role == "condition"
    assert follow(graph, shown, {"kind": "peak"}) == peak_view(graph)
    assert follow(graph, shown, {"kind": "whole"}).hidden == 0
    assert loop.name in follow(graph, shown, {"kind": "expand", "name": loop.name}).nodes
    assert follow(graph, peak_view(graph), {"kind": "show", "name": loop.name}).computation is graph.entry
    for wrong in ({"kind": "show", "name": "none"}, {"kind": "open"}, {"kind": "what"}, {}):
        with pytest.raises(LookupError):
            follow(graph, shown, wrong)


# --- the skeleton ---


def test_long_edges_are_set_apart_but_for_the_peak_path() -> None:
    graph = made(f"{chain(LONGEST + 1)} n0-n{LONGEST} n0-n{LONGEST + 1}")
    bones = skeleton(whole_view(graph.entry))
    assert [(w.edge.tail, w.edge.head) for w in bones.long] == [("n0", f"n{LONGEST + 1}")]
    assert len(bones.wires) == LONGEST + 2
    edges = tuple(Edge(e.tail, e.head, e.kind, True) for e in graph.entry.edges)
    path = Computation("main", "entry", None, None, graph.entry.nodes, edges)
    assert skeleton(whole_view(path)).long == ()


def test_inputs_stand_on_each_of_their_readers() -> None:
    graph = made("p0-a p0-b p1-b a-b b-c", p1={"bytes": 4})
    a, b, c = skeleton(whole_view(graph.entry)).boxes
    assert [[n.name for n in box.inputs] for box in (a, b, c)] == [["p0"], ["p1", "p0"], []]


def test_hidden_neighbours_are_counted() -> None:
    graph = made("p0-a a-b b-c b-d", b={"on_peak_path": True})
    (box,) = skeleton(peak_view(graph, 1)).boxes
    assert (box.node.name, box.hidden) == ("b", 3)


# --- the layouts ---

DOT = shutil.which("dot")
PURE = next((engine for engine in dot.engines() if engine.endswith("graphviz-pure")), None)


def by_engine(engine: str | None) -> Callable[[Skeleton, list[Size]], Layout]:
    if engine is None:
        pytest.skip("this Graphviz is not installed")
    return layered.lay_out if engine == "layered" else lambda bones, sizes: dot.lay_out(bones, sizes, engine)


LAYOUTS = pytest.mark.parametrize("engine", [DOT, PURE, "layered"], ids=["dot", "graphviz-pure", "layered"])


def check_places(bones: Skeleton, sizes: list[Size], layout: Layout) -> None:
    assert len(layout.centres) == len(bones.boxes)
    assert len(layout.curves) == len(bones.wires)
    frames = [
        (x - w / 2, y - h / 2, x + w / 2, y + h / 2) for (x, y), (w, h) in zip(layout.centres, sizes, strict=True)
    ]
    for left, top, right, bottom in frames:
        assert left >= -1
        assert top >= -1
        assert right <= layout.width + 1
        assert bottom <= layout.height + 1
    for a, b in itertools.combinations(frames, 2):
        assert a[2] <= b[0] + 1 or b[2] <= a[0] + 1 or a[3] <= b[1] + 1 or b[3] <= a[1] + 1
    for wire, curve in zip(bones.wires, layout.curves, strict=True):
        assert layout.centres[wire.tail][1] < layout.centres[wire.head][1]
        assert len(curve) % 3 == 1
        for end, at in ((curve[0], frames[wire.tail]), (curve[-1], frames[wire.head])):
            assert at[0] - 2 <= end[0] <= at[2] + 2
            assert at[1] - 2 <= end[1] <= at[3] + 2


ODD = {
    "one node": made("", a={}),
    "no edges": made("", a={}, b={}, c={}),
    "two parts": made("a-b c-d"),
    "diamond": made("a-b a-c b-d c-d a-d"),
    "long": made(f"{chain(30)} n0-n20 n3-n29"),
    "wide": made(" ".join(f"a-b{k} b{k}-z" for k in range(20))),
    "inputs": made(" ".join(f"p{k}-a" for k in range(40)) + " a-b"),
}


@LAYOUTS
@pytest.mark.parametrize("name", ODD)
def test_boxes_stand_apart_and_edges_lead_down(engine: str | None, name: str) -> None:
    place = by_engine(engine)
    bones = skeleton(whole_view(ODD[name].entry))
    sizes = [boxes.box_size(box, boxes.scale_of(ODD[name].largest)) for box in bones.boxes]
    check_places(bones, sizes, place(bones, sizes))


@LAYOUTS
def test_real_programs_have_a_place_too(engine: str | None, one: Profile) -> None:
    place = by_engine(engine)
    for computation in one.graph.computations:
        bones = skeleton(computation_view(computation))
        sizes = [boxes.box_size(box, boxes.scale_of(one.graph.largest)) for box in bones.boxes]
        if bones.boxes:
            check_places(bones, sizes, place(bones, sizes))


def script(folder: Path, body: str) -> str:
    path = folder / "dot"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


FAILURES = {
    "crashes": "kill -SEGV $$",
    "says no": "echo 'no such thing' >&2; exit 1",
    "says something else": "echo hello",
    "says half of it": "echo 'graph 1 2 3'; echo 'node 0 1 1 1 1 \"\"'",
    "says nothing": "cat >/dev/null",
    "writes no text": "printf '\\377\\376'",
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_graphviz_that_fails_is_an_error_and_no_more(failure: str, tmp_path: Path) -> None:
    bones = skeleton(whole_view(ODD["diamond"].entry))
    engine = script(tmp_path, FAILURES[failure])
    with pytest.raises(dot.DotError):
        dot.lay_out(bones, [(50, 20)] * 4, engine)
    assert lay_out(bones, [(50, 20)] * 4, [engine]).engine == "layered"


def test_a_graphviz_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    bones = skeleton(whole_view(ODD["diamond"].entry))
    with pytest.raises(dot.DotError, match="timed out"):
        dot.lay_out(bones, [(50, 20)] * 4, script(tmp_path, "exec sleep 60"), seconds=0.3)


def test_the_real_graphviz_is_stopped_in_the_middle_of_its_work() -> None:
    if DOT is None:
        pytest.skip("no Graphviz")
    graph = made(" ".join(f"a{i}-b{(i * k) % 300}" for i in range(300) for k in range(1, 30)))
    bones = skeleton(whole_view(graph.entry))
    with pytest.raises(dot.DotError, match="timed out"):
        dot.lay_out(bones, [(50, 20)] * len(bones.boxes), DOT, seconds=0.5)


def test_without_any_graphviz_there_is_a_layout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert dot.engines() == []
    bones = skeleton(whole_view(ODD["diamond"].entry))
    assert lay_out(bones, [(50, 20)] * 4).engine == "layered"
    with pytest.raises(dot.DotError):
        dot.lay_out(bones, [(50, 20)] * 4, str(tmp_path / "dot"))


def test_the_next_graphviz_takes_over(tmp_path: Path) -> None:
    if DOT is None:
        pytest.skip("no Graphviz")
    bones = skeleton(whole_view(ODD["diamond"].entry))
    assert lay_out(bones, [(50, 20)] * 4, [script(tmp_path, "kill -SEGV $$"), DOT]).engine == "dot"


def test_an_empty_graph_needs_no_layout() -> None:
    assert lay_out(Skeleton((), (), ()), []).centres == ()


# --- the drawing ---


def svg_of(graph: HloGraph, shown: Shown | None = None, engines: list[str] | None = None) -> ET.Element:
    return ET.fromstring(graph_svg(picture(graph, shown or peak_view(graph), engines), 'a "label" <&>'))


def with_class(svg: ET.Element, name: str) -> list[ET.Element]:
    return [e for e in svg.iter() if name in e.get("class", "").split()]


@pytest.mark.parametrize("engines", [None, []], ids=["Graphviz", "layered"])
def test_the_drawing_is_well_formed(one: Profile, engines: list[str] | None) -> None:
    for computation in one.graph.computations:
        shown = computation_view(computation)
        svg = svg_of(one.graph, shown, engines)
        bones = skeleton(shown)
        assert [e.get("data-node") for e in with_class(svg, "mg-box")] == [b.node.name for b in bones.boxes]
        assert len(with_class(svg, "mg-wire")) == len(bones.wires)
        assert len(with_class(svg, "mg-chip")) == sum(len(b.inputs) for b in bones.boxes)
        assert "nan" not in ET.tostring(svg, "unicode")


def test_names_with_special_characters_are_escaped(profiles: dict[str, Profile]) -> None:
    graph = profiles["named"].graph
    (buffer,) = {e.get("data-buffer") for e in with_class(svg_of(graph), "mg-chip")} - {""}
    assert buffer == next(b.name for b in profiles["named"].buffers if b.kind == "argument")
    assert "<b>" in buffer
    nasty = "</svg><script>&\"'"
    graph = made("", **{nasty: {"op": nasty, "source": nasty, "buffers": (nasty,), "bytes": 4}})
    (box,) = with_class(svg_of(graph), "mg-box")
    assert box.get("data-node") == box.get("data-buffer") == nasty
    assert nasty in "".join(box.itertext())


def test_more_bytes_are_darker_and_larger() -> None:
    graph = made("a-b b-c c-d", b={"bytes": 1 << 10}, c={"bytes": 1 << 18}, d={"bytes": 1 << 30})
    svg = svg_of(graph)
    levels = [next(m for m in e.get("class", "").split() if m.startswith("mg-b") and m[4:].isdigit())
              for e in with_class(svg, "mg-box")]  # fmt: skip
    assert levels == ["mg-b0", "mg-b1", "mg-b1", "mg-b6"]
    scale = boxes.scale_of(graph.largest)
    heights = [boxes.body_size(n, scale)[1] for n in graph.nodes]
    assert heights[1] < heights[3]


@pytest.mark.parametrize("largest", [0, 1, 3, 4, 1000, 1 << 20, (1 << 40) + 5])
def test_a_scale_has_a_level_for_everything(largest: int) -> None:
    scale = boxes.scale_of(largest)
    assert scale.level(0) == 0
    assert scale.level(largest) == (boxes.LEVELS if largest else 0)
    levels = [scale.level(largest >> k) for k in range(42)]
    assert levels == sorted(levels, reverse=True)
    for k, threshold in enumerate(scale.thresholds[:-1]):
        assert scale.level(threshold) == boxes.LEVELS - k


def test_the_legend_names_bytes_and_marks(profiles: dict[str, Profile]) -> None:
    text = legend(picture(profiles["knn"].graph, peak_view(profiles["knn"].graph)))
    for said in ("4.00 MiB or more", "less than", "no buffer", "peak path", "in use at the peak"):
        assert said in text


def test_the_caption_says_what_is_left_out(training: Profile, profiles: dict[str, Profile]) -> None:
    shown = peak_view(training.graph)
    total = sum(not n.is_input for n in training.graph.entry.nodes)
    said = caption(picture(training.graph, shown, []), "they are not drawn")
    assert f"{len(shown.nodes):,} of {total:,} instructions" in said
    assert f"edges span more than {LONGEST} layers: they are not drawn" in said
    body = caption(picture(profiles["scan"].graph, peak_view(profiles["scan"].graph)), "")
    assert body.startswith("The body of while")


def test_a_static_page_holds_the_peaks_neighbourhood(training: Profile, one: Profile) -> None:
    page = training.to_html()
    assert "around the peak" in page
    assert 5 < page.count("mg-box mg-b") <= 24
    assert len(page) < 200_000
    assert one.to_html()


# --- the size of real programs ---


def cpu_seconds(work: Callable[[], Any]) -> tuple[Any, float]:
    """What work returns, and the processor time it took, here and in the processes it started."""

    def spent() -> float:
        both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(usage.ru_utime + usage.ru_stime for usage in both)

    before = spent()
    result = work()
    return result, spent() - before


def test_a_training_step_is_drawn_in_time(training: Profile) -> None:
    entry = training.graph_source.flow.module.entry
    assert len(entry.instructions) >= 1500
    training.__dict__.pop("graph", None)
    graph, building = cpu_seconds(lambda: training.graph)
    bones, choosing = cpu_seconds(lambda: skeleton(peak_view(graph)))
    _, placing = cpu_seconds(lambda: picture(graph, peak_view(graph)))
    whole, all_of_it = cpu_seconds(lambda: picture(graph, whole_view(graph.entry)))
    print(f"graph {building:.2f} s, skeleton {choosing:.3f} s, layout {placing:.2f} s, whole {all_of_it:.2f} s")
    # A second or less on a quiet machine; without the skeleton `dot` does not end within minutes.
    assert max(building, choosing, placing) < 10
    assert all_of_it < 10
    assert len(whole.skeleton.boxes) > len(bones.boxes)


def test_a_widget_has_a_still_picture_for_where_there_are_none(profiles: dict[str, Profile]) -> None:
    data, _ = graph_widget(profiles["knn"])._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert data["text/plain"].startswith("HLO graph of nearest: peak ")
    (encoded,) = re.findall('src="data:image/svg[+]xml;base64,([^"]*)"', data["text/html"])
    svg = ET.fromstring(base64.b64decode(encoded))
    assert with_class(svg, "mg-summit")
    assert all("var(--jp" not in (style.text or "") for style in svg if style.tag.endswith("style"))


def test_the_page_gets_little(training: Profile) -> None:
    graph = training.graph
    sent = picture_payload(graph, picture(graph, peak_view(graph), []))
    assert len(json.dumps(sent)) < 600_000
    known = index(graph, lambda source: f"the text of {source}")
    assert {row[0] for row in known} == {n.name for n in graph.entry.nodes}
    assert len(json.dumps(known)) < 600_000
