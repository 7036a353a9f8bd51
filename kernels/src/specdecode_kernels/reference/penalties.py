"""Repetition, presence and frequency penalties and logit bias, exact at every node of a draft."""

import torch
from torch import Tensor
from torch.nn import functional

from specdecode_kernels.reference.trees import link_nodes
from specdecode_kernels.sampling_rows import DraftedNodes, PenaltyRows


def penalise(logits: Tensor, rows: PenaltyRows, drafted: DraftedNodes | None) -> Tensor:
    """Treat the requests that have penalties one by one; asks the device which those are."""
    result = logits.clone()
    for row in (rows.states >= 0).nonzero()[:, 0].tolist():
        state = rows.states[row]
        counts = _counts(rows.counts[state], row, drafted)
        seen = (counts > 0) | rows.in_prompt[state]
        result[row] = _penalise(logits[row], seen, counts, rows.numbers[row])
        result[row] += rows.bias[state].to(logits.dtype)
    return result


def _counts(counts: Tensor, row: int, drafted: DraftedNodes | None) -> Tensor:
    """Times that each token stands in the output up to each node; [1 or nodes, vocab] f32."""
    if drafted is None:
        return counts[None]
    tokens = functional.one_hot(drafted.tokens[row], counts.shape[0]).to(counts.dtype)
    if drafted.parents is None:
        return counts + functional.pad(tokens.cumsum(dim=0), (0, 0, 1, 0))
    _, ancestry = link_nodes(drafted.parents[row : row + 1], drafted.max_depth)
    return counts + ancestry[0, :, 1:].to(counts.dtype) @ tokens


def _penalise(logits: Tensor, seen: Tensor, counts: Tensor, numbers: Tensor) -> Tensor:
    repetition, presence, frequency = numbers.to(logits.dtype).unbind()
    scaled = torch.where(logits > 0, logits / repetition, logits * repetition)
    result = torch.where(seen, scaled, logits)
    result = result - presence * (counts > 0).to(logits.dtype)
    return result - frequency * counts.to(logits.dtype)
