"""The kernel of routers chooses the reference's experts, with its factors, in one launch."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specdecode_kernels import TORCH, ExpertRouting, RoutingConfig
from tests.kernels.launched import launches
from tests.kernels.mixtures import normal
from tests.kernels.routers import EXPERTS, ROUTERS
from tests.kernels.triton_ops import TRITON

PUBLISHED = {
    "Qwen3-30B-A3B": (128, RoutingConfig(top_k=8, scores="softmax", is_normalized=True)),
    "gpt-oss-20b": (32, RoutingConfig(top_k=4, scores="softmax_of_top_k")),
    "Llama 4 Scout": (16, RoutingConfig(top_k=1, scores="sigmoid_of_top_k")),
    "Phi-3.5-MoE": (16, RoutingConfig(top_k=2, scores="sparsemixer", jitter=0.01)),
    "Qwen3-Next-80B": (512, RoutingConfig(top_k=10, scores="softmax", is_normalized=True)),
    "DeepSeek-V3": (
        256,
        RoutingConfig(
            top_k=8, scores="sigmoid", is_normalized=True, scale=2.5, num_groups=8, top_groups=4
        ),
    ),
    "Kimi-K2": (384, RoutingConfig(top_k=8, scores="sigmoid", is_normalized=True, scale=2.827)),
}


def assert_equal(got: ExpertRouting, wanted: ExpertRouting) -> None:
    assert (got.ids.dtype, got.weights.dtype) == (torch.int32, torch.float32)
    assert torch.equal(got.ids, wanted.ids)
    torch.testing.assert_close(got.weights, wanted.weights, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ROUTERS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_every_kind_equals_the_reference(name: str, has_bias: bool, device: torch.device) -> None:
    logits = normal(7, EXPERTS).to(device)
    bias = normal(EXPERTS).to(device) * 0.3 if has_bias else None
    with launches() as counts:
        got = TRITON.route_experts(logits, ROUTERS[name], bias)
    assert sum(counts.values()) == 1
    assert_equal(got, TORCH.route_experts(logits, ROUTERS[name], bias))


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sizes_of_published_models(name: str, dtype: torch.dtype, device: torch.device) -> None:
    experts, config = PUBLISHED[name]
    # Different numbers of bfloat16, since among equals any expert is right.
    numbers = torch.arange(0x3F80, 0x3F80 + 512, 512 // experts).short().view(torch.bfloat16)
    rows = [torch.randperm(experts, generator=torch.Generator().manual_seed(n)) for n in range(5)]
    logits = numbers[torch.stack(rows)].to(device, dtype)
    bias = normal(experts).to(device) * 0.01 if config.scores == "sigmoid" else None
    assert_equal(
        TRITON.route_experts(logits, config, bias), TORCH.route_experts(logits, config, bias)
    )


def test_rows_with_a_stride_and_none(device: torch.device) -> None:
    logits, config = normal(6, 2 * EXPERTS).to(device), ROUTERS["softmax"]
    for rows in (logits[::2, :EXPERTS], logits[:0, :EXPERTS], logits.t()[:EXPERTS].t()):
        assert_equal(
            TRITON.route_experts(rows, config, None), TORCH.route_experts(rows, config, None)
        )


@pytest.mark.parametrize("name", ROUTERS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter
@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
def test_ids_are_experts_whatever_logits_are(
    name: str, poison: float, device: torch.device
) -> None:
    logits = torch.full((2, EXPERTS), poison, device=device)
    logits[1, 3] = 1.0
    ids = TRITON.route_experts(logits, ROUTERS[name], None).ids.long()
    assert 0 <= int(ids.min()) <= int(ids.max()) < EXPERTS
    for row in ids.tolist():
        assert len(set(row)) == len(row)


def test_a_row_is_routed_alike_in_any_batch(device: torch.device) -> None:
    logits: Tensor = normal(9, EXPERTS).to(device)
    for config in (*ROUTERS.values(), replace(ROUTERS["groups"], top_groups=4)):
        whole = TRITON.route_experts(logits, config, None)
        part = TRITON.route_experts(logits[4:6], config, None)
        assert torch.equal(part.ids, whole.ids[4:6])
        assert torch.equal(part.weights, whole.weights[4:6])
