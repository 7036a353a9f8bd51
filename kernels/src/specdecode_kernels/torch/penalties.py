"""Repetition, presence and frequency penalties and logit bias, exact at every node of a draft."""

import torch
from torch import Tensor
from torch.nn import functional

from specdecode_kernels.metadata import DraftedNodes, PenaltyParamsBatch
from specdecode_kernels.torch.trees import build_tree_mask


def apply_penalties(
    logits: Tensor, params: PenaltyParamsBatch, drafted: DraftedNodes | None
) -> Tensor:
    """Process the requests with penalties one by one; synchronises to find them."""
    result = logits.clone()
    for row in (params.states >= 0).nonzero()[:, 0].tolist():
        state = params.states[row]
        counts = _counts(params.counts[state], row, drafted)
        seen = (counts > 0) | params.in_prompt[state]
        result[row] = _penalized(logits[row], seen, counts, params.numbers[row])
        result[row] += params.bias[state].to(logits.dtype)
    return result


def _counts(counts: Tensor, row: int, drafted: DraftedNodes | None) -> Tensor:
    """Times that each token stands in the output up to each node; [1 or nodes, vocab] f32."""
    if drafted is None:
        return counts[None]
    if drafted.parents is None:
        tokens = functional.one_hot(drafted.tokens[row], counts.shape[0]).to(counts.dtype)
        return counts + functional.pad(tokens.cumsum(dim=0), (0, 0, 1, 0))
    _, ancestry = build_tree_mask(drafted.parents[row : row + 1], drafted.max_depth)
    on_path = ancestry[0, :, 1:].to(counts.dtype)  # [nodes, drafted tokens]
    return counts.repeat(len(on_path), 1).scatter_add_(
        1, drafted.tokens[row].expand_as(on_path), on_path
    )


def _penalized(logits: Tensor, seen: Tensor, counts: Tensor, numbers: Tensor) -> Tensor:
    repetition, presence, frequency = numbers.to(logits.dtype).unbind()
    scaled = torch.where(logits > 0, logits / repetition, logits * repetition)
    result = torch.where(seen, scaled, logits)
    result = result - presence * (counts > 0).to(logits.dtype)
    return result - frequency * counts.to(logits.dtype)
