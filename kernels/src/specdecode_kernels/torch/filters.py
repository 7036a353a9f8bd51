"""Top-k, top-p and min-p as masks on logits, one function for drafted and plain decoding."""

import torch
from torch import Tensor

from specdecode_kernels.torch.by_row import by_row, update_by_row


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
