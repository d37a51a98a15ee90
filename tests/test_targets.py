"""Targets by name: what they can hold, and what is said of names that are none."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

import memscope
from memscope.gpu.devices import DEVICES, LIMITS, target_config
from memscope.machine import CPU, gpu_machine, machine_of
from memscope.report.plan import room_elsewhere
from memscope.target import resolve, roomier

GIB = 1 << 30
PROMISED = "a100-40gb a100-80gb a6000 l4 t4 rtx4090 h100 h200 b200".split()


def test_the_names() -> None:
    assert memscope.targets()[:3] == ("cpu", "gpu", "tpu")
    assert set(PROMISED) <= set(memscope.targets())


@pytest.mark.parametrize(
    ("name", "gib"),
    list(zip(PROMISED, (40, 80, 48, 24, 16, 24, 80, 141, 180), strict=True)),
)
def test_a_gpu_holds_what_xla_would_take_of_it(name: str, gib: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    target = resolve(name)
    assert (target.platform, target.is_here) == ("cuda", False)
    assert target.memory_bytes is not None
    assert 0.9 * gib * 1e9 <= target.memory_bytes <= 1.075 * gib * 1e9
    assert target.capacity_bytes == int(0.75 * target.memory_bytes)
    assert "0.75 of its" in target.capacity_note
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", ".9")
    assert resolve(name).capacity_bytes == int(0.9 * target.memory_bytes)


def test_a_fraction_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("most", "-1"):
        monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", text)
        with pytest.raises(memscope.TargetError, match=f"XLA_PYTHON_CLIENT_MEM_FRACTION='{text}'"):
            resolve("t4")


def test_gpus_with_more_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    t4 = resolve("t4")
    assert roomier(t4, 0)[0] == "t4"
    assert roomier(t4, 100 * GIB) == ("h200", "b200")
    assert roomier(t4, 1000 * GIB) == ()
    assert roomier(resolve("cpu"), 0) == ()
    assert room_elsewhere(t4, 100 * GIB) == "there is room for 100 GiB on h200, b200"
    assert room_elsewhere(t4, 20 * GIB) == "there is room for 20.0 GiB on a100-40gb, a6000, h100 or larger"
    assert room_elsewhere(t4, 2000 * GIB) == "no GPU that memscope knows has room for 1.95 TiB"


def test_this_cpu() -> None:
    assert resolve(None) == resolve("cpu") == memscope.target()
    assert resolve("cpu").is_here
    assert resolve("cpu").capacity_note == ""


def test_like_another() -> None:
    target = memscope.target(memory="24GiB", like="a100-40gb")
    assert (target.name, target.memory_bytes) == ("a100-40gb with 24.0 GiB", 24 * GIB)
    assert target.capacity_bytes == 18 * GIB
    assert target.device is not None
    assert target.device.capability == (8, 0)
    assert memscope.target("ours", memory=24 * GIB, like="a100-40gb").name == "ours"
    assert resolve(target) is target


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("A100", "'a100-40gb', 'a100-80gb'"),
        ("nvidia h100", "'h100'"),
        ("RTX 4090", "'rtx4090'"),
        ("h201", "'h200'"),
        ("abacus", "'cpu', 'gpu', 'tpu', 'a100-40gb'"),
    ],
)
def test_an_unknown_name_is_told_the_nearest(name: str, near: str) -> None:
    with pytest.raises(memscope.TargetError) as caught:
        memscope.profile(jnp.sin, jnp.ones(3), target=name)
    assert f"unknown target {name!r}: use one of {near}" in str(caught.value)


@pytest.mark.parametrize("name", ["gpu", "tpu"])
def test_what_is_not_attached(name: str) -> None:
    with pytest.raises(memscope.TargetError, match=f"no {name.upper()} is attached to this process: name the GPU"):
        memscope.profile(jnp.sin, jnp.ones(3), target=name)


def test_what_a_target_is_like_has_to_be_a_gpu() -> None:
    with pytest.raises(memscope.TargetError, match="like which GPU"):
        memscope.target(memory="24GiB")
    with pytest.raises(memscope.TargetError, match="like='cpu' names no GPU"):
        memscope.target(memory="24GiB", like="cpu")
    with pytest.raises(memscope.TargetError, match="unknown target 'a200'"):
        memscope.target(memory="24GiB", like="a200")
    with pytest.raises(ValueError, match="not a size"):
        memscope.target(memory="lots", like="t4")


@pytest.mark.parametrize("name", PROMISED)
def test_the_facts_of_a_device_hang_together(name: str) -> None:
    device = DEVICES[name]
    assert device.capability in LIMITS
    assert 2e11 < device.bandwidth < 1e13
    assert device.flops < 1.5e14
    assert device.matmul_flops > 0.9 * device.flops
    config = target_config(device)
    assert f"core_count: {device.cores}" in config
    assert config.count("{") == config.count("}")


def test_data_sheets() -> None:
    """Products of the table's facts that the data sheets state as well."""
    assert DEVICES["a100-40gb"].flops == pytest.approx(19.5e12, rel=0.01)
    assert DEVICES["h100"].flops == pytest.approx(67e12, rel=0.01)
    assert DEVICES["rtx4090"].flops == pytest.approx(82.6e12, rel=0.01)
    assert DEVICES["t4"].flops == pytest.approx(8.1e12, rel=0.01)
    assert DEVICES["l4"].flops == pytest.approx(30.3e12, rel=0.01)


def test_chunks_fill_a_gpu() -> None:
    assert machine_of(resolve("cpu")) is CPU
    for name in PROMISED:
        device, machine = DEVICES[name], machine_of(resolve(name))
        assert machine == gpu_machine(device)
        assert machine.usual_chunk >= 8 * 4 * device.threads
        assert machine.usual_chunk > CPU.usual_chunk
        assert machine.transfer(1 << 30) == pytest.approx((1 << 30) / device.bandwidth, rel=0.3)
