"""The token of every node: penalties, temperature, filters and noise, then the likeliest.

Gumbel noise is a function of (seed, position, token), the same for every draft and batch. Source of
the idea: Daliri, Musco, Suresh, "Coupling without communication and drafter-invariant speculative
decoding", 2024. The hash is a 32-bit integer finaliser applied per token id.
"""

import torch
from torch import Tensor
from torch.nn import functional

from specdecode_kernels.metadata import DraftedNodes, PenaltyParamsBatch, SamplingParamsBatch
from specdecode_kernels.torch.by_row import by_row, update_by_row
from specdecode_kernels.torch.trees import build_tree_mask

_MASK = 0xFFFFFFFF
_GOLDEN = 0x9E3779B9
_LARGEST_UNIFORM = 1.0 - 2.0**-24
"""The float32 before 1: the 128 largest hashes round to 1, whose noise would be minus infinity."""


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
    if tokens.dim() == 3:
        tokens = tokens[requests].flatten(0, 1)
    noise = gumbel_noise(by_node(params.seeds), positions[requests].reshape(-1), tokens)
    return (scaled + noise.to(logits.dtype)).view(len(requests), nodes, vocab)


def filter_logits(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Set the logits outside top-k, then top-p of what is left, then min-p, to minus infinity.

    Ties at a border are kept by lower token id first, so that the result does not depend on how a
    sort breaks them. The likeliest token always stays.

    Args:
        logits: [rows, vocab] float, already divided by the temperature.
        top_k: [rows] i64, 0 is off.
        top_p: [rows] float in (0, 1], 1 is off.
        min_p: [rows] float in [0, 1], 0 is off.
    """
    vocab = logits.shape[-1]
    ordered, order = torch.sort(logits, dim=-1, descending=True, stable=True)
    ranks = torch.arange(vocab, device=logits.device)
    limit = torch.where(top_k > 0, top_k, vocab)
    ordered = ordered.masked_fill(ranks[None, :] >= limit[:, None], -torch.inf)
    probs = by_row(lambda row: torch.softmax(row, dim=-1), ordered)
    mass_before = update_by_row(lambda row: row.cumsum_(dim=-1), probs) - probs
    dropped = mass_before >= top_p[:, None].to(probs.dtype)
    dropped |= probs < min_p[:, None].to(probs.dtype) * probs[:, :1]
    dropped &= (top_p < 1.0)[:, None] | (min_p > 0.0)[:, None]
    dropped[:, 0] = False
    ordered = ordered.masked_fill(dropped, -torch.inf)
    return torch.full_like(logits, -torch.inf).scatter_(-1, order, ordered)


def gumbel_noise(seeds: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """Return standard Gumbel noise.

    Args:
        seeds: [rows] i64, any value; all 64 bits count.
        positions: [rows] i64, the absolute position of the token to be chosen.
        tokens: [vocab] i64, the token ids to make noise for; or [rows, vocab], of each row.

    Returns:
        [rows, vocab] f32, all finite: -2.81 to 22.9.
    """
    low = _mix((seeds & _MASK) ^ _mix((positions + 1) & _MASK))
    high = _mix(((seeds >> 32) & _MASK) ^ ((low * _GOLDEN) & _MASK))
    token_keys = _mix((tokens * _GOLDEN + 1) & _MASK)
    return noise_of_bits(_mix(_mix(token_keys ^ low[:, None]) ^ high[:, None]))


def noise_of_bits(bits: Tensor) -> Tensor:
    """Map hashes [rows, n] i64 below 2^32 to standard Gumbel noise [rows, n] f32, all finite."""
    # Small u gives large noise and keeps full float precision there, where the argmax is decided.
    uniform = ((bits.to(torch.float32) + 0.5) * 2.0**-32).clamp_(max=_LARGEST_UNIFORM)
    exponential = -update_by_row(torch.log1p_, -uniform)
    return -update_by_row(torch.log_, exponential)


def _mix(value: Tensor) -> Tensor:
    """Scramble 32 bits held in int64: a bijection with full avalanche (constants: C. Wellons)."""
    value = value ^ (value >> 16)
    value = (value * 0x21F0AAAD) & _MASK
    value = value ^ (value >> 15)
    value = (value * 0x735A2D97) & _MASK
    return value ^ (value >> 15)


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
