"""Which experts compute a row, and with what factors, from the logits of a router.

A flipped expert is a visible error, so every function keeps a row's bits whatever rows it is
computed with: exponentials are computed row by row on a CPU, and sums over experts in their order.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from specdecode_kernels import ExpertRouting
from specdecode_kernels.torch.by_row import by_row

Scores = Literal["softmax", "softmax_of_top_k", "sigmoid", "sigmoid_of_top_k", "sparsemixer"]

SMALLEST_SUM = 1e-20
"""Added to what factors are divided by, as in GLM-4.5 and DeepSeek-V3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingConfig:
    """How a router's logits become experts and factors.

    softmax and sigmoid are scores of all experts, whose `top_k` largest are chosen.
    softmax_of_top_k chooses by logits and is the softmax of those alone (gpt-oss), sigmoid_of_top_k
    the sigmoid of each (Llama 4), where large logits differ and their scores do not. sparsemixer
    chooses one expert after another, each with a softmax over the logits within a relative
    distance of 2 * `jitter` below the largest (Phi-3.5-MoE; Liu et al., "GRIN", 2024).
    """

    top_k: int
    scores: Scores
    is_normalized: bool = False  # factors are divided by their sum
    scale: float = 1.0  # of all factors
    num_groups: int = 1  # experts are chosen within the best groups of consecutive ones
    top_groups: int = 1  # a group is as good as the sum of its two best experts
    jitter: float = 0.0


def route(
    logits: Tensor, config: RoutingConfig, correction_bias: Tensor | None = None
) -> ExpertRouting:
    """Choose the experts of every row of logits [rows, experts], in float32.

    Args:
        correction_bias: [experts], added to scores for the choice alone (DeepSeek-V3).
    """
    logits = logits.float()
    if config.scores == "sparsemixer":
        return _sparsemixer(logits, config)
    if config.scores == "softmax_of_top_k":
        best, ids = torch.topk(logits, config.top_k, dim=-1)
        return ExpertRouting(ids.int(), _softmax(best) * config.scale)
    if config.scores == "sigmoid_of_top_k":
        best, ids = torch.topk(logits, config.top_k, dim=-1)
        return ExpertRouting(ids.int(), by_row(torch.sigmoid, best) * config.scale)
    scores = _softmax(logits) if config.scores == "softmax" else by_row(torch.sigmoid, logits)
    ids = torch.topk(_for_choice(scores, config, correction_bias), config.top_k, dim=-1).indices
    factors = scores.gather(1, ids)
    if config.is_normalized:
        factors = factors / (_sum_in_order(factors) + SMALLEST_SUM)
    return ExpertRouting(ids.int(), factors if config.scale == 1.0 else factors * config.scale)


def _for_choice(scores: Tensor, config: RoutingConfig, correction_bias: Tensor | None) -> Tensor:
    """Add the bias; put -inf in place of experts outside of the best groups."""
    if correction_bias is not None:
        scores = scores + correction_bias.float()
    if config.num_groups == 1:
        return scores
    groups = scores.view(len(scores), config.num_groups, -1)
    best = torch.topk(groups, 2, dim=-1).values
    chosen = torch.topk(best[..., 0] + best[..., 1], config.top_groups, dim=-1).indices
    numbers = torch.arange(config.num_groups, device=scores.device)
    is_outside = (chosen[:, :, None] == numbers).logical_not().all(dim=1)
    return groups.masked_fill(is_outside[:, :, None], -torch.inf).view(scores.shape)


def _sparsemixer(logits: Tensor, config: RoutingConfig) -> ExpertRouting:
    ids, factors, left = [], [], logits
    for _ in range(config.top_k):
        largest, chosen = left.max(dim=-1, keepdim=True)
        distance = (largest - logits) / torch.maximum(logits.abs(), largest)
        near = left.masked_fill(distance > 2 * config.jitter, -torch.inf)
        ids.append(chosen)
        factors.append(_softmax(near).gather(1, chosen))
        left = left.scatter(1, chosen, -torch.inf)
    return ExpertRouting(torch.cat(ids, dim=1).int(), torch.cat(factors, dim=1) * config.scale)


def _softmax(logits: Tensor) -> Tensor:
    return by_row(partial(torch.softmax, dim=-1), logits)


def _sum_in_order(factors: Tensor) -> Tensor:
    """Add the columns of [rows, n] from the first to the last: [rows, 1]."""
    total, *others = factors.unbind(1)
    for column in others:
        total = total + column
    return total[:, None]
