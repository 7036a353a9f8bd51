"""The token of every node: the likeliest, or the likeliest after filters and noise."""

import torch
from torch import Tensor

from specdecode_kernels.metadata import SamplingParamsBatch
from specdecode_kernels.torch.filters import filter_logits
from specdecode_kernels.torch.noise import gumbel_noise


def sample(
    logits: Tensor, params: SamplingParamsBatch | None, positions: Tensor, ids: Tensor | None
) -> Tensor:
    """Take the likeliest for all, then replace it for the requests that sample."""
    greedy = logits.argmax(dim=-1)
    if params is None:
        return greedy
    sampled = (params.temperature > 0).nonzero()[:, 0]
    perturbed = perturb_logits(logits, params, positions, ids, sampled)
    return greedy.index_copy(0, sampled, perturbed.argmax(dim=-1))


def perturb_logits(
    logits: Tensor,
    params: SamplingParamsBatch,
    positions: Tensor,
    ids: Tensor | None,
    requests: Tensor,
) -> Tensor:
    """Temperature, filters and noise for the requests `requests` [R] i64: [R, nodes, vocab]."""
    nodes, vocab = logits.shape[1:]

    def by_node(numbers: Tensor) -> Tensor:
        return numbers[requests].repeat_interleave(nodes)

    temperature = by_node(params.temperature)[:, None].to(logits.dtype)
    scaled = logits[requests].reshape(-1, vocab) / temperature
    if params.is_filtered:
        scaled = filter_logits(
            scaled, by_node(params.top_k), by_node(params.top_p), by_node(params.min_p)
        )
    tokens = torch.arange(vocab, device=logits.device) if ids is None else ids
    noise = gumbel_noise(by_node(params.seeds), positions[requests].reshape(-1), tokens)
    return (scaled + noise.to(logits.dtype)).view(len(requests), nodes, vocab)
