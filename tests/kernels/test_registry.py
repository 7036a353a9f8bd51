"""Every op in the table has its four parts, every kernel file is in it, and every launch counts."""

import importlib
from pathlib import Path

import pytest
import torch

import specdecode_kernels
from specdecode_kernels import launches
from specdecode_kernels.implementation import VARIABLE, implementation_for
from specdecode_kernels.registry import OPS, Op
from specdecode_kernels.testing import calls

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_an_op_has_its_four_parts(op: Op) -> None:
    for dotted in filter(None, (op.reference, op.triton, op.native)):
        module, _, name = dotted.rpartition(".")
        assert callable(getattr(importlib.import_module(module), name))
    assert callable(getattr(specdecode_kernels, op.name))
    assert (ROOT / op.tests).is_file()
    assert (ROOT / op.bench).is_file()


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_a_launch_is_counted_and_a_reference_is_not(
    op: Op, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = calls(device)
    for wanted, is_there in (
        ("torch", False),
        ("triton", True),
        ("native", op.native is not None and device.type == "cpu"),
    ):
        monkeypatch.setenv(VARIABLE, wanted)
        launches.reset()
        ready[op.name]()
        assert set(launches.snapshot()) == ({(op.name, wanted)} if is_there else set())


def test_a_cpu_takes_c_and_float64_always_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert implementation_for(torch.zeros(1)) == "native"
    assert implementation_for(torch.zeros(1, dtype=torch.bfloat16)) == "native"
    assert implementation_for(torch.zeros(1, dtype=torch.float16)) == "torch"
    for wanted in ("torch", "triton", "native"):
        monkeypatch.setenv(VARIABLE, wanted)
        assert implementation_for(torch.zeros(1)) == wanted
        assert implementation_for(torch.zeros(1, dtype=torch.float64)) == "torch"
    monkeypatch.setenv(VARIABLE, "cuda")
    with pytest.raises(ValueError, match="SPECDECODE_KERNELS='cuda' names no implementation"):
        implementation_for(torch.zeros(1))


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_a_benchmark_explains_itself_and_asks_for_a_gpu(
    op: Op, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = importlib.import_module(op.bench.removeprefix("bench/")[:-3].replace("/", "."))
    with pytest.raises(SystemExit, match="0"):
        bench.run(op.name, bench.cases, ["--help"])
    assert f"python -m kernels.{op.name}" in capsys.readouterr().out
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench.run(op.name, bench.cases, []) == 2
    assert "no CUDA device" in capsys.readouterr().err
