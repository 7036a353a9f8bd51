"""Which experts compute a row, and with what factors, from the logits of a router.

A flipped expert is a visible error, so every function keeps a row's bits whatever rows it is
computed with: exponentials are computed row by row on a CPU, and sums over experts in their order.
"""

from functools import partial

import torch
from torch import Tensor

from specdecode_kernels.mixture import ExpertRouting, RoutingConfig
from specdecode_kernels.torch.by_row import by_row

SMALLEST_SUM = 1e-20
"""Added to what factors are divided by, as in GLM-4.5 and DeepSeek-V3."""


def route_experts(
    logits: Tensor, config: RoutingConfig, correction_bias: Tensor | None
) -> ExpertRouting:
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
