"""One target pass over the bonus tokens and what was drafted behind them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from specdecode_engine.draft import Draft
from specdecode_engine.forward.kv_view import KvView, PagedView, TreeView
from specdecode_engine.rounds.parts import Parts
from specdecode_engine.rounds.path import count_agreeing, walk_tree
from specdecode_engine.slots import DecodeBatch, Rows


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the target chose at every node, and the path on which it agrees with the draft.

    The choice at the path's last accepted node is the next bonus token.
    """

    tokens: Tensor  # [B, N] i64
    path: Tensor | None  # [B, path_length] i64; None for a chain, whose path is its nodes
    accepted: Tensor  # [B] i64, drafted tokens on the path
    logits: Tensor  # [B, N, vocab]
    features: Tensor | None  # [B, N, width]


def verify(parts: Parts, batch: DecodeBatch, draft: Draft | None) -> Verdict:
    """Run the target over each bonus token and its draft; no draft is plain decoding."""
    bonus = batch.bonus[:, None]
    ids = bonus if draft is None else torch.cat([bonus, draft.tokens], dim=1)
    rows, view = _lay_out(parts, batch, draft, ids.shape[1])
    slots = list(batch.slot_ids)
    on_host = parts.sampler.grammars.ship(slots, draft)
    hidden = parts.target.forward(ids.flatten(), rows.positions, view, parts.capture.layers)
    logits = parts.target.logits(hidden.last).view(*ids.shape, -1)
    positions = rows.positions.view(ids.shape) + 1
    tokens = parts.sampler.choose(logits, slots, positions, draft, on_host)
    features = parts.features_of(hidden)
    if features is not None:
        features = features.view(*ids.shape, -1)
    if draft is not None and draft.tree is not None:
        path, accepted = walk_tree(tokens, draft)
        return Verdict(tokens, path, accepted, logits, features)
    return Verdict(tokens, None, count_agreeing(tokens, draft), logits, features)


def _lay_out(
    parts: Parts, batch: DecodeBatch, draft: Draft | None, nodes: int
) -> tuple[Rows, KvView]:
    if draft is not None and draft.tree is not None:
        rows = parts.table.node_rows(batch, draft.tree.depths)
        return rows, TreeView(parts.pool, rows.kv_rows, rows.layout, draft.tree.ancestry)
    rows = parts.table.window_rows(batch, batch.lengths, nodes)
    return rows, PagedView(parts.pool, rows.kv_rows, rows.layout)
