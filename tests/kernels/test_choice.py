"""A backend is chosen by what can run here, and the choice includes the reason."""

import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch

from specdecode_kernels import FLOAT8, TORCH, AttentionParams, choose_backend
from specdecode_kernels.choice import (
    DRAFT_FORWARDS,
    FLASHINFER_EXTRA,
    KERNELS_VARIABLE,
    TARGET_FORWARDS,
    Kernels,
    triton_unsupported,
)
from specdecode_kernels.testing import DEVICE, OPS, implementation_of
from tests.shadow_cuda.active import shadow_cuda
from tests.shadow_cuda.device import ShadowDevice
from tests.shadow_cuda.flashinfer_module import (
    BatchPrefillWithPagedKVCacheWrapper,
    installed_flashinfer,
)

CPU = torch.device("cpu")


def test_a_cpu_gets_the_kernels_in_c() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        backend, reason, _ = choose_backend("auto", CPU, dtype, 64)
        assert backend.name == backend.attention == "cpu"
        assert reason.startswith("kernels in C for this processor, as ")


@pytest.mark.parametrize(
    ("dtype", "pool_dtype", "variable", "obstacle"),
    [
        (torch.float16, None, "", "float32 and bfloat16 have kernels for a CPU, not torch.float16"),
        (torch.bfloat16, FLOAT8, "", "a KV cache of the queries' type, not torch.bfloat16 over"),
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
    monkeypatch.setenv(KERNELS_VARIABLE, variable)
    backend, reason, _ = choose_backend("auto", CPU, dtype, 64, pool_dtype)
    assert backend.attention == "torch"
    assert backend.attend is TORCH.attend
    assert obstacle in reason


def test_torch_may_be_asked_for() -> None:
    choice = choose_backend("torch", CPU, torch.float64, 1000)
    assert choice.backend is TORCH
    assert choice.reason == "torch was asked for"


def test_triton_runs_where_kernels_are_tested() -> None:
    backend, reason, _ = choose_backend("triton", DEVICE, torch.bfloat16, 80, FLOAT8)
    assert backend.attention == "triton"
    assert reason == "triton was asked for"


@pytest.mark.parametrize(
    ("dtype", "dim", "obstacle"),
    [
        (torch.float64, 64, "not torch.float64"),
        (torch.float16, 513, "heads of up to 512, not 513"),
        (torch.float32, 256, "float32 heads of more than 128"),
    ],
)
def test_triton_is_refused_where_it_cannot_run(dtype: torch.dtype, dim: int, obstacle: str) -> None:
    with pytest.raises(ValueError, match=f"'triton' cannot run: .*{obstacle}.*choose 'auto'"):
        choose_backend("triton", DEVICE, dtype, dim)
    backend, reason, _ = choose_backend("auto", DEVICE, dtype, dim)
    assert backend.attention == ("cpu" if DEVICE == CPU and dtype == torch.float32 else "torch")
    assert obstacle in reason


@pytest.mark.parametrize(
    ("capability", "obstacle"), [((7, 5), "compute capability"), ((8, 0), None), ((8, 6), None)]
)
def test_a_float8_cache_is_read_from_ampere_on(
    capability: tuple[int, int], obstacle: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    found = triton_unsupported(torch.device("cuda"), torch.bfloat16, 128, FLOAT8)
    assert (obstacle in found) if obstacle and found else found is obstacle


def test_a_cache_of_a_third_type_is_refused() -> None:
    found = triton_unsupported(DEVICE, torch.bfloat16, 128, torch.float16)
    assert found is not None
    assert "KV cache of torch.bfloat16" in found


def test_flashinfer_is_refused_where_it_cannot_run() -> None:
    with pytest.raises(ValueError, match=r"'flashinfer' cannot run: .* needs? a CUDA device"):
        choose_backend("flashinfer", CPU, torch.bfloat16, 128)


@pytest.mark.parametrize(
    ("features", "reason"),
    [
        ({"v_head_dim": 64}, "keys and values of one head size, not 128 and 64"),
        ({"layers": [AttentionParams(sinks=torch.zeros(2))]}, "take no sinks"),
    ],
)
def test_what_flashinfer_cannot_attend_to_goes_to_triton(
    gpu: ShadowDevice, features: dict[str, Any], reason: str
) -> None:
    with installed_flashinfer(gpu):
        choice = choose_backend("auto", GPU, torch.bfloat16, 128, **features)
        with pytest.raises(ValueError, match=f"'flashinfer' cannot run: .*{reason}"):
            choose_backend("flashinfer", GPU, torch.bfloat16, 128, **features)
    assert choice.backend.attention == "triton"
    assert reason in choice.reason


def test_triton_holds_latents_and_the_rest_of_their_keys_in_tiles_of_their_own(
    gpu: ShadowDevice,
) -> None:
    """A key of 576 entries is a latent of 512, which is the value too, and 64 more."""
    latent: dict[str, Any] = {"v_head_dim": 512, "is_latent": True}
    choice = choose_backend("auto", GPU, torch.bfloat16, 576, **latent)
    assert choice.backend.attention == "triton"
    assert "flashinfer takes float16 or bfloat16 heads of (64, 128, 256)" in choice.reason
    for dim, changed in ((576, {"is_latent": False}), (640, {})):
        choice = choose_backend("auto", GPU, torch.bfloat16, dim, **latent | changed)
        assert choice.backend.attention == "torch"
        assert f"heads of up to 512, not {dim}" in choice.reason


def test_triton_is_refused_for_wide_values() -> None:
    with pytest.raises(ValueError, match="heads of up to 512, not 576"):
        choose_backend("triton", DEVICE, torch.bfloat16, 128, v_head_dim=576)


@pytest.fixture
def gpu() -> Iterator[ShadowDevice]:
    with shadow_cuda() as device:
        yield device


GPU = torch.device("cuda")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_gpu_prefers_flashinfer_where_it_made_a_call(
    gpu: ShadowDevice, dtype: torch.dtype
) -> None:
    with installed_flashinfer(gpu) as module:
        choice = choose_backend("auto", GPU, dtype, 64)
        assert module.BatchPrefillWithPagedKVCacheWrapper.runs == 1
    assert (choice.backend.name, choice.backend.attention) == ("triton", "flashinfer")
    assert choice.backend.graph_support.is_possible
    names = {*TARGET_FORWARDS, *DRAFT_FORWARDS}
    by_forward = choice.attention_by_forward(names, in_graphs=False)
    backends = {name: one["backend"] for name, one in by_forward.items()}
    assert backends == {
        "prefill": "flashinfer",
        "decode": "flashinfer",
        "verify_chain": "triton",
        "verify_tree": "triton",
        "draft": "triton",
    }
    in_graphs = choice.attention_by_forward(names, in_graphs=True)
    assert in_graphs["prefill"] == {"backend": "flashinfer", "reason": choice.reason}
    assert in_graphs["decode"]["backend"] == "triton"
    assert "plan on the host before each replay" in in_graphs["decode"]["reason"]


def test_flashinfer_is_called_for_each_kind_of_layer(gpu: ShadowDevice) -> None:
    """A window and a softcap are constants of its kernels; their values are arguments."""
    layers = [
        AttentionParams(sliding_window=window, logit_softcap=softcap)
        for window in (None, 64, 128)
        for softcap in (None, 50.0)
    ]
    with installed_flashinfer(gpu) as module:
        choice = choose_backend("auto", GPU, torch.bfloat16, 64, layers=layers)
        assert module.BatchPrefillWithPagedKVCacheWrapper.runs == 4
    assert choice.backend.attention == "flashinfer"


def test_a_kind_of_layer_that_flashinfer_cannot_compile_is_a_reason(
    gpu: ShadowDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = BatchPrefillWithPagedKVCacheWrapper.plan

    def refuse_softcaps(*arguments: Any, **named: Any) -> None:
        if named["logits_soft_cap"] is not None:
            raise RuntimeError("no module for softcaps")
        plan(*arguments, **named)

    monkeypatch.setattr(BatchPrefillWithPagedKVCacheWrapper, "plan", refuse_softcaps)
    layers = [AttentionParams(), AttentionParams(logit_softcap=30.0)]
    with installed_flashinfer(gpu):
        assert choose_backend("auto", GPU, torch.bfloat16, 64).backend.attention == "flashinfer"
        choice = choose_backend("auto", GPU, torch.bfloat16, 64, layers=layers)
    assert choice.backend.attention == "triton"
    assert "no module for softcaps" in choice.reason


def test_without_flashinfer_a_gpu_takes_triton_and_names_the_extra(gpu: ShadowDevice) -> None:
    with mock.patch.dict(sys.modules, flashinfer=None):
        choice = choose_backend("auto", GPU, torch.bfloat16, 64)
    assert choice.backend.attention == "triton"
    assert choice.reason.endswith("not installed: pip install 'specdecode-engine[gpu]'")
    by_forward = choice.attention_by_forward(TARGET_FORWARDS, in_graphs=True)
    assert {one["backend"] for one in by_forward.values()} == {"triton"}


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("__init__", ModuleNotFoundError("No module named 'pynvml'", name="pynvml")),
        ("plan", RuntimeError("Could not find nvcc\nand more")),
    ],
)
def test_a_first_call_that_fails_is_a_reason(
    gpu: ShadowDevice, name: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(BatchPrefillWithPagedKVCacheWrapper, name, fail)
    with installed_flashinfer(gpu):
        choice = choose_backend("auto", GPU, torch.bfloat16, 64)
        with pytest.raises(
            ValueError, match="'flashinfer' cannot run: flashinfer failed its first"
        ):
            choose_backend("flashinfer", GPU, torch.bfloat16, 64)
    assert choice.backend.attention == "triton"
    what = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    assert choice.reason.endswith(f"failed its first call ({what}): {FLASHINFER_EXTRA}")


@pytest.mark.parametrize(
    ("dtype", "dim", "obstacle"),
    [(torch.float32, 64, "not torch.float32"), (torch.bfloat16, 80, "heads of 80")],
)
def test_flashinfer_is_left_out_for_other_types_and_heads(
    gpu: ShadowDevice, dtype: torch.dtype, dim: int, obstacle: str
) -> None:
    with installed_flashinfer(gpu):
        choice = choose_backend("auto", GPU, dtype, dim)
    assert choice.backend.attention == "triton"
    assert obstacle in choice.reason


def test_other_words_are_refused() -> None:
    with pytest.raises(ValueError, match="'cuda' is none of auto, torch, triton, flashinfer"):
        choose_backend("cuda", CPU, torch.bfloat16, 128)  # type: ignore[arg-type]


def test_a_backend_declares_whether_it_can_be_captured() -> None:
    assert choose_backend("triton", DEVICE, torch.bfloat16, 64).backend.graph_support == (
        True,
        None,
    )
    possible, limitation = choose_backend("torch", DEVICE, torch.bfloat16, 64).backend.graph_support
    assert possible
    assert "full width" in str(limitation)


def test_attention_by_torch_leaves_the_other_ops_with_c() -> None:
    backend = choose_backend("torch", CPU, torch.float32, 64).backend
    assert (backend.name, backend.attention) == ("cpu", "torch")
    assert implementation_of("rms_norm", backend) == "cpu"
    assert implementation_of("attend", backend) == implementation_of("store_kv", backend) == "torch"


@pytest.mark.parametrize("wanted", ["torch", "triton", "cpu"])
def test_float64_always_stays_with_torch(wanted: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KERNELS_VARIABLE, wanted)
    assert choose_backend("auto", CPU, torch.float64, 64).backend is TORCH


@pytest.mark.parametrize("wanted", ["torch", "triton", "cpu"])
def test_the_environment_forces_every_op_that_has_such_a_kernel(
    wanted: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KERNELS_VARIABLE, wanted)
    device = CPU if wanted == "cpu" else DEVICE
    backend = choose_backend("auto", device, torch.float32, 64).backend
    assert (backend.name, backend.attention) == (wanted, wanted)
    assert {implementation_of(op, backend) for op in OPS} == {"torch", wanted}


def test_a_value_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KERNELS_VARIABLE, "cuda")
    with pytest.raises(ValueError, match="SPECDECODE_KERNELS='cuda' does not exist: set torch"):
        choose_backend("auto", CPU, torch.float32, 64)


def test_the_environment_is_read_when_the_backend_is_chosen_and_not_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = choose_backend("auto", CPU, torch.float32, 64).backend
    monkeypatch.setenv(KERNELS_VARIABLE, "cuda")
    assert torch.equal(backend.silu_and_mul(torch.zeros(1, 4), torch.ones(1, 4)), torch.zeros(1, 4))
