"""The token of every node: the likeliest, or the likeliest after filters and noise."""

import torch
from torch import Tensor

from specdecode_kernels.reference.filters import filter_logits
from specdecode_kernels.reference.noise import gumbel_noise
from specdecode_kernels.sampling_rows import SamplingRows


def choose(
    logits: Tensor, rows: SamplingRows | None, positions: Tensor, ids: Tensor | None
) -> Tensor:
    """Choose greedily for all, then anew for the requests that sample."""
    greedy = logits.argmax(dim=-1)
    if rows is None:
        return greedy
    sampled = (rows.temperature > 0).nonzero()[:, 0]
    perturbed = perturb(logits, rows, positions, ids, sampled)
    return greedy.index_copy(0, sampled, perturbed.argmax(dim=-1))


def perturb(
    logits: Tensor, rows: SamplingRows, positions: Tensor, ids: Tensor | None, chosen: Tensor
) -> Tensor:
    """Temperature, filters and noise for the requests `chosen` [C] i64: [C, nodes, vocab]."""
    nodes, vocab = logits.shape[1:]

    def by_node(numbers: Tensor) -> Tensor:
        return numbers[chosen].repeat_interleave(nodes)

    temperature = by_node(rows.temperature)[:, None].to(logits.dtype)
    scaled = logits[chosen].reshape(-1, vocab) / temperature
    if rows.is_filtered:
        scaled = filter_logits(
            scaled, by_node(rows.top_k), by_node(rows.top_p), by_node(rows.min_p)
        )
    tokens = torch.arange(vocab, device=logits.device) if ids is None else ids
    noise = gumbel_noise(by_node(rows.seeds), positions[chosen].reshape(-1), tokens)
    return (scaled + noise.to(logits.dtype)).view(len(chosen), nodes, vocab)
