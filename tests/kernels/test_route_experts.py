"""Experts and factors of rows, against plain Python, and in any batch."""

import math

import pytest
import torch

from specdecode_kernels import TORCH, ExpertRouting, RoutingConfig
from tests.kernels.mixtures import normal
from tests.kernels.routers import EXPERTS, ROUTERS
from tests.unsteady_blas import under_unsteady_blas


def routed_alone(logits: list[float], config: RoutingConfig, bias: list[float]) -> dict[int, float]:
    """Route one row in plain Python; sparsemixer apart."""
    total = sum(math.exp(logit) for logit in logits)
    scores = [math.exp(logit) / total for logit in logits]
    if config.scores.startswith("sigmoid"):
        scores = [1 / (1 + math.exp(-logit)) for logit in logits]
    biased = [score + more for score, more in zip(scores, bias, strict=True)]
    size = len(logits) // config.num_groups
    groups = [range(first, first + size) for first in range(0, len(logits), size)]
    if config.num_groups > 1:
        groups.sort(key=lambda group: -sum(sorted(biased[i] for i in group)[-2:]))
    allowed = [i for group in groups[: config.top_groups] for i in group]
    chosen = sorted(allowed, key=lambda i: -biased[i])[: config.top_k]
    is_normalized = config.is_normalized or config.scores == "softmax_of_top_k"
    divisor = sum(scores[i] for i in chosen) if is_normalized else 1.0
    return {i: scores[i] / divisor * config.scale for i in chosen}


@pytest.mark.parametrize("name", [name for name in ROUTERS if name != "sparsemixer"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_rows_are_routed_as_in_plain_python(name: str, has_bias: bool) -> None:
    config, logits = ROUTERS[name], normal(40, EXPERTS)
    has_effect = has_bias and "top_k" not in config.scores  # which choose by logits
    bias = normal(EXPERTS) * 0.3 if has_effect else torch.zeros(EXPERTS)
    routing = TORCH.route_experts(logits, config, bias if has_bias else None)
    assert (routing.ids.dtype, routing.weights.dtype) == (torch.int32, torch.float32)
    for row in range(40):
        wanted = routed_alone(logits[row].tolist(), config, bias.tolist())
        got = dict(zip(routing.ids[row].tolist(), routing.weights[row].tolist(), strict=True))
        assert got == pytest.approx(wanted, rel=1e-5)


def test_experts_are_chosen_by_logits_where_their_scores_do_not_differ() -> None:
    routing = TORCH.route_experts(
        torch.tensor([[30.0, 31.0, 2.0]]), ROUTERS["sigmoid of the best"], None
    )
    assert routing.ids.tolist() == [[1, 0]]
    assert routing.weights.tolist() == [[1.0, 1.0]]


def test_sparsemixer_leaves_out_logits_that_are_far_below() -> None:
    config = RoutingConfig(top_k=2, scores="sparsemixer", jitter=0.1)
    routing = TORCH.route_experts(torch.tensor([[2.0, 1.0, 1.9, 1.7]]), config, None)
    assert routing.ids.tolist() == [[0, 2]]
    near = math.exp(2.0) / (math.exp(2.0) + math.exp(1.9) + math.exp(1.7))
    second = math.exp(1.9) / (math.exp(1.9) + math.exp(1.7))
    assert routing.weights[0].tolist() == pytest.approx([near, second], rel=1e-5)


@pytest.mark.parametrize("name", ROUTERS)
def test_a_row_is_routed_alike_in_any_batch(name: str) -> None:
    logits, bias = normal(13, EXPERTS), normal(EXPERTS) * 0.3

    def routed(first: int, last: int) -> ExpertRouting:
        routing = under_unsteady_blas(
            lambda: TORCH.route_experts(logits[first:last], ROUTERS[name], bias)
        )
        assert isinstance(routing, ExpertRouting)
        return routing

    whole = routed(0, 13)
    for first, last in ((0, 1), (4, 9), (12, 13)):
        part = routed(first, last)
        assert torch.equal(part.ids, whole.ids[first:last])
        assert torch.equal(part.weights, whole.weights[first:last])
