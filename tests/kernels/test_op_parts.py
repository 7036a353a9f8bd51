"""Every op with a Triton kernel has its four parts, and every call of an op is counted."""

import importlib

import pytest
import torch

from bench.cpu.kernels.table import KERNEL_OPS, ROOT, path_of_bench, path_of_tests
from specdecode_kernels.choice import Kernels
from specdecode_kernels.testing import (
    OPS,
    LaunchCounter,
    backend_of,
    calls,
    checked,
    implementation_of,
)
from tests.kernels.launched import launches

IN_C = {
    "linear",
    "map_heads",
    "add_low_rank",
    "experts",
    "rms_norm",
    "add_rms_norm",
    "apply_rope",
    "silu_and_mul",
    "gelu_tanh_and_mul",
    "softcap",
    "store_kv",
    "rope_and_store_kv",
    "attend",
    "verify_chain",
    "append_tokens",
    "lay_out_rows",
    "gated_delta",
    "keep_drafted",
}


def test_the_table_lists_every_op_with_a_triton_kernel(device: torch.device) -> None:
    backend = backend_of("triton", device)
    with_kernel = {op for op in OPS if implementation_of(op, backend) == "triton"}
    assert with_kernel - {"attend_with_lse"} == set(KERNEL_OPS)


def test_ops_that_take_most_of_a_step_on_a_cpu_have_a_kernel_in_c() -> None:
    backend = backend_of("cpu", torch.device("cpu"))
    assert {op for op in OPS if implementation_of(op, backend) == "cpu"} == IN_C


@pytest.mark.parametrize("op", KERNEL_OPS)
def test_an_op_has_its_tests_and_its_benchmark(op: str) -> None:
    assert (ROOT / path_of_tests(op)).is_file()
    assert (ROOT / path_of_bench(op)).is_file()


@pytest.mark.parametrize("op", KERNEL_OPS)
@pytest.mark.parametrize("wanted", ["torch", "triton", "cpu"])
def test_a_launch_is_counted_where_a_kernel_computes(
    wanted: Kernels, op: str, device: torch.device
) -> None:
    on = torch.device("cpu") if wanted == "cpu" else device
    backend = backend_of(wanted, on, torch.bfloat16)
    counter = LaunchCounter()
    with launches() as counts:
        calls(on)[op](checked(counter.wrap(backend)))
    implementation = implementation_of(op, backend)
    assert set(counter.counts) == {(op, implementation)}
    assert bool(counts) is (implementation != "torch")


@pytest.mark.parametrize("op", KERNEL_OPS)
def test_a_benchmark_explains_itself_and_asks_for_a_gpu(
    op: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = importlib.import_module(path_of_bench(op)[:-3].replace("/", "."))
    with pytest.raises(SystemExit, match="0"):
        bench.run(op, bench.cases, ["--help"])
    assert f"python -m bench.cpu.kernels.{op}" in capsys.readouterr().out
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench.run(op, bench.cases, []) == 2
    assert "no CUDA device" in capsys.readouterr().err
