from __future__ import annotations

import argparse
import pathlib

import pytest

from memscope.options import Options, UsageError, add_options, add_rewrite_options, read_options


def parse(*argv: str) -> Options:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_options(parser)
    add_rewrite_options(parser)
    return read_options(parser.parse_args(argv))


def test_nothing_given() -> None:
    assert parse() == Options()
    assert not parse().rewrites


def test_all_given(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "out.py"
    options = parse("-l", "512MiB", "-t", "cpu", "-r", "-q", "--export", str(out))
    assert options == Options(limit="512MiB", target="cpu", run=True, quiet=True, export=out)


@pytest.mark.parametrize("argv", [("-l", "25%"), ("-r",), ("--export", "out.py")])
def test_what_asks_for_a_rewritten_function(
    argv: tuple[str, ...], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse(*argv).rewrites


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("-l", "12XB"), "'12XB' is not a size"),
        (("-l", "0"), "above zero"),
        (("-l=-5",), "not a size"),
        (("-l", "0%"), "above zero"),
        (("-t", "tpu-v9"), "unknown target 'tpu-v9'"),
        (("--export", "out.txt"), "end the name in .py"),
        (("--export", "nowhere/out.py"), "there is no folder nowhere"),
        (("--export", "."), "is a folder"),
    ],
)
def test_bad_options_are_refused_with_a_sentence(
    argv: tuple[str, ...], said: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        parse(*argv)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
