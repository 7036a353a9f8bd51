"""A router's choice of experts and their factors, in one launch: a program for each row.

The logits of a row stay in registers, a group of experts in each row of a tile. The best expert is
taken from what is left as often as a row has experts, each time by two reductions within one warp.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdecode_kernels.mixture import ExpertRouting, RoutingConfig
from specdecode_kernels.torch.routing import SMALLEST_SUM

EXPERTS_PER_WARP = 512


@triton.jit
def _max(values):
    return tl.max(tl.max(values, 1), 0)


@triton.jit
def _sum(values):
    return tl.sum(tl.sum(values, 1), 0)


@triton.jit
def _scores(logits, SCORES: tl.constexpr):
    scores = logits
    if SCORES == "softmax":
        scores = tl.exp(logits - _max(logits))
        scores /= _sum(scores)
    elif SCORES == "sigmoid":
        scores = 1.0 / (1.0 + tl.exp(-logits))
    return scores


@triton.jit
def _factor(best, largest, logits, scores, is_left, is_chosen, jitter, SCORES: tl.constexpr):
    # Of the best expert of those that are left; where they are chosen by logits, best is its logit.
    if SCORES == "softmax_of_top_k":
        factor = tl.exp(best - largest)
    elif SCORES == "sigmoid_of_top_k":
        factor = 1.0 / (1.0 + tl.exp(-best))
    elif SCORES == "sparsemixer":
        own = tl.where(is_left, logits, best)
        distance = (best - own) / tl.maximum(tl.abs(own), best)
        is_near = is_left & ((distance > 2 * jitter) == 0)
        factor = 1.0 / _sum(tl.where(is_near, tl.exp(own - best), 0.0))
    else:
        factor = _sum(tl.where(is_chosen, scores, 0.0))
    return factor


@triton.jit
def _is_in_best_groups(choice, TOP_GROUPS: tl.constexpr, GROUPS: tl.constexpr, SIZE: tl.constexpr):
    # [G, 1] bool: the groups whose two best experts have the largest sums.
    place = tl.arange(0, SIZE)[None, :]
    best = tl.max(choice, 1)[:, None]
    first = tl.min(tl.where(choice == best, place, SIZE), 1)[:, None]
    second = tl.max(tl.where(place == first, -float("inf"), choice), 1)
    sums = tl.max(choice, 1) + second
    own, other = sums[:, None], sums[None, :]
    number = tl.arange(0, GROUPS)
    is_before = (other > own) | ((other == own) & (number[None, :] < number[:, None]))
    return (tl.sum(is_before.to(tl.int32), 1) < TOP_GROUPS)[:, None]


@triton.jit(do_not_specialize=("stride_logits",))
def _route_experts_kernel(
    logits_ptr,
    bias_ptr,
    ids_ptr,
    factors_ptr,
    stride_logits,
    scale,
    jitter,
    smallest_sum,
    SCORES: tl.constexpr,
    IS_NORMALIZED: tl.constexpr,
    TOP_K: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    TOP_GROUPS: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    GROUPS: tl.constexpr,  # this and the next two: filled up to a power of two
    SIZE: tl.constexpr,
    PLACES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    group, place = tl.arange(0, GROUPS)[:, None], tl.arange(0, SIZE)[None, :]
    expert = group * GROUP_SIZE + place
    is_left = (group < NUM_GROUPS) & (place < GROUP_SIZE)
    logits = tl.load(logits_ptr + row * stride_logits + expert, mask=is_left, other=-float("inf"))
    logits = logits.to(tl.float32)
    scores = _scores(logits, SCORES)
    choice = scores
    if bias_ptr is not None:
        choice += tl.load(bias_ptr + expert, mask=is_left, other=0.0)
    # What is not a number is chosen last, so that every id is one of an expert.
    choice = tl.where(is_left & (choice == choice), choice, -float("inf"))
    if TOP_GROUPS < NUM_GROUPS:
        is_left &= _is_in_best_groups(choice, TOP_GROUPS, GROUPS, SIZE)

    places = tl.arange(0, PLACES)
    ids, factors = tl.zeros([PLACES], tl.int32), tl.zeros([PLACES], tl.float32)
    total, largest = 0.0, 0.0
    for step in range(TOP_K):
        best = _max(tl.where(is_left, choice, -float("inf")))
        is_best = is_left & (choice == best)
        chosen = tl.min(tl.min(tl.where(is_best, expert, NUM_GROUPS * GROUP_SIZE), 1), 0)
        is_chosen = is_left & (expert == chosen)
        largest = tl.where(step == 0, best, largest)
        factor = _factor(best, largest, logits, scores, is_left, is_chosen, jitter, SCORES)
        is_left &= is_chosen == 0
        total += factor
        ids = tl.where(places == step, chosen, ids)
        factors = tl.where(places == step, factor, factors)
    if IS_NORMALIZED:
        factors /= total + smallest_sum
    is_place = places < TOP_K
    tl.store(ids_ptr + row * TOP_K + places, ids, mask=is_place)
    tl.store(factors_ptr + row * TOP_K + places, factors * scale, mask=is_place)


def route_experts(
    logits: Tensor, config: RoutingConfig, correction_bias: Tensor | None
) -> ExpertRouting:
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    rows, num_experts = logits.shape
    ids = torch.empty((rows, config.top_k), dtype=torch.int32, device=logits.device)
    factors = torch.empty((rows, config.top_k), dtype=torch.float32, device=logits.device)
    if not rows:
        return ExpertRouting(ids, factors)
    by_logits = config.scores not in ("softmax", "sigmoid")
    bias = None if correction_bias is None or by_logits else correction_bias.float().contiguous()
    num_groups = 1 if by_logits else config.num_groups
    group_size = num_experts // num_groups
    groups, size = triton.next_power_of_2(num_groups), triton.next_power_of_2(group_size)
    is_softmax_of_top_k = config.scores == "softmax_of_top_k"
    _route_experts_kernel[(rows,)](
        logits,
        bias,
        ids,
        factors,
        logits.stride(0),
        config.scale,
        config.jitter,
        0.0 if is_softmax_of_top_k else SMALLEST_SUM,
        SCORES=config.scores,
        IS_NORMALIZED=is_softmax_of_top_k or (config.is_normalized and not by_logits),
        TOP_K=config.top_k,
        NUM_GROUPS=num_groups,
        TOP_GROUPS=config.top_groups,
        GROUP_SIZE=group_size,
        GROUPS=groups,
        SIZE=size,
        PLACES=triton.next_power_of_2(config.top_k),
        num_warps=max(1, groups * size // EXPERTS_PER_WARP),
    )
    return ExpertRouting(ids, factors)
