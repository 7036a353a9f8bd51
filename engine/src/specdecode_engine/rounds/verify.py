"""One target pass over the drafted chains, and how far each agrees with the target's choices."""

from dataclasses import dataclass

import torch
from torch import Tensor

from specdecode_engine.forward.kv_view import PagedView
from specdecode_engine.rounds.parts import Parts
from specdecode_engine.slots import DecodeBatch


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the target chose at every node of a round that drafted `num_steps` tokens.

    `tokens` [B, num_steps + 1] i64: entry j is the choice behind the first j drafted tokens, so
    the first accepted + 1 entries are the emitted tokens and the last of them is the next bonus.
    """

    tokens: Tensor
    accepted: Tensor  # [B] i64, 0..num_steps
    logits: Tensor  # [B, num_steps + 1, vocab]
    features: Tensor | None  # [B * (num_steps + 1), width]


def verify(parts: Parts, batch: DecodeBatch, drafted: Tensor | None) -> Verdict:
    """Run the target over each bonus token and the tokens drafted behind it.

    Args:
        drafted: [B, num_steps] i64, or None at depth 0.
    """
    bonus = batch.bonus[:, None]
    ids = bonus if drafted is None else torch.cat([bonus, drafted], dim=1)
    nodes = ids.shape[1]
    rows = parts.table.window_rows(batch, batch.lengths, nodes)
    view = PagedView(parts.pool, rows.kv_rows, rows.layout)
    hidden = parts.target.forward(ids.reshape(-1), rows.positions, view, parts.capture)
    logits = parts.target.logits(hidden.last).view(batch.size, nodes, -1)
    positions = rows.positions.view(batch.size, nodes) + 1
    tokens = parts.sampler.choose(logits, list(batch.slot_ids), positions, drafted)
    return Verdict(tokens, _count_agreeing(tokens, drafted), logits, hidden.captured)


def _count_agreeing(tokens: Tensor, drafted: Tensor | None) -> Tensor:
    """Count the drafted tokens before the first that the target did not choose; [B] i64."""
    if drafted is None:
        return torch.zeros(tokens.shape[0], dtype=torch.int64, device=tokens.device)
    agrees = (drafted == tokens[:, :-1]).to(torch.int64)
    return agrees.cumprod(dim=1).sum(dim=1)
