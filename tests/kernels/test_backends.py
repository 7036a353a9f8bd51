"""A backend is chosen by what can run here, and the choice says why."""

import pytest
import torch

from specdecode_kernels import choose_backend
from specdecode_kernels.backends import TORCH
from specdecode_kernels.implementation import VARIABLE
from specdecode_kernels.reference.pool import FLOAT8
from specdecode_kernels.testing import DEVICE

CPU = torch.device("cpu")


def test_a_cpu_gets_the_kernels_in_c() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        backend, reason = choose_backend("auto", CPU, dtype, 64)
        assert backend.name == "cpu"
        assert reason.startswith("kernels in C for this processor, as ")


@pytest.mark.parametrize(
    ("dtype", "pool_dtype", "variable", "obstacle"),
    [
        (torch.float16, None, "", "float32 and bfloat16 have kernels for a CPU, not torch.float16"),
        (torch.bfloat16, FLOAT8, "", "pools of the queries' type, not torch.bfloat16 over"),
        (torch.float32, None, "torch", "SPECDECODE_KERNELS is torch"),
    ],
)
def test_what_has_no_kernel_for_a_cpu_gets_the_reference(
    dtype: torch.dtype,
    pool_dtype: torch.dtype | None,
    variable: str,
    obstacle: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, variable)
    backend, reason = choose_backend("auto", CPU, dtype, 64, pool_dtype)
    assert backend is TORCH
    assert obstacle in reason


def test_torch_may_be_asked_for() -> None:
    choice = choose_backend("torch", CPU, torch.float64, 1000)
    assert choice.backend is TORCH
    assert choice.reason == "torch was asked for"


def test_triton_runs_where_kernels_are_tested() -> None:
    backend, reason = choose_backend("triton", DEVICE, torch.bfloat16, 80, FLOAT8)
    assert backend.name == "triton"
    assert reason == "triton was asked for"


@pytest.mark.parametrize(
    ("dtype", "dim", "obstacle"),
    [
        (torch.float64, 64, "not torch.float64"),
        (torch.float32, 257, "heads of up to 256, not 257"),
    ],
)
def test_triton_is_refused_where_it_cannot_run(dtype: torch.dtype, dim: int, obstacle: str) -> None:
    with pytest.raises(ValueError, match=f"'triton' cannot run: .*{obstacle}.*choose 'auto'"):
        choose_backend("triton", DEVICE, dtype, dim)
    backend, reason = choose_backend("auto", DEVICE, dtype, dim)
    assert backend.name == ("cpu" if DEVICE == CPU and dtype == torch.float32 else "torch")
    assert obstacle in reason


def test_flashinfer_is_refused_where_it_cannot_run() -> None:
    with pytest.raises(ValueError, match=r"'flashinfer' cannot run: flashinfer (is not|needs)"):
        choose_backend("flashinfer", CPU, torch.bfloat16, 128)


def test_other_words_are_refused() -> None:
    with pytest.raises(ValueError, match="'cuda' is none of auto, torch, triton, flashinfer"):
        choose_backend("cuda", CPU, torch.bfloat16, 128)  # type: ignore[arg-type]


def test_who_may_be_captured_says_so_itself() -> None:
    assert choose_backend("triton", DEVICE, torch.bfloat16, 64).backend.capturing == (True, None)
    possible, drawback = choose_backend("torch", DEVICE, torch.bfloat16, 64).backend.capturing
    assert possible
    assert "full width" in str(drawback)
