"""One target pass over the bonus tokens and what was drafted behind them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from specdecode_engine.draft import Draft
from specdecode_engine.forward.passes import PassInputs, PassOutputs
from specdecode_engine.graph_plan.passes import PassKind
from specdecode_engine.rounds.parts import Parts
from specdecode_engine.rounds.path import count_agreeing, walk_tree
from specdecode_engine.sampling.grammar_masks import DraftOnHost
from specdecode_engine.slots import DecodeBatch


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
    inputs = lay_out_nodes(parts, batch, draft)
    on_host = parts.sampler.grammars.ship(list(batch.slot_ids), draft)
    outputs = parts.states.run(PassKind.VERIFY, inputs)
    return judge(parts, batch, draft, on_host, inputs.positions, outputs)


def lay_out_nodes(parts: Parts, batch: DecodeBatch, draft: Draft | None) -> PassInputs:
    """Lay out the bonus tokens and their draft as chains, or as the draft's trees."""
    bonus, tree = batch.bonus[:, None], None if draft is None else draft.tree
    ids = bonus if draft is None else torch.cat([bonus, draft.tokens], dim=1)
    if tree is not None:
        rows = parts.table.node_rows(batch, tree.depths)
    else:
        rows = parts.table.window_rows(batch, batch.lengths, ids.shape[1])
    mask = None if tree is None else tree.ancestry
    return PassInputs(ids.flatten(), rows.positions, rows.layout, rows.kv_rows, mask=mask)


def judge(
    parts: Parts,
    batch: DecodeBatch,
    draft: Draft | None,
    on_host: DraftOnHost | None,
    positions: Tensor,
    outputs: PassOutputs,
) -> Verdict:
    """Choose the target's token at every node and walk to where the draft differs.

    Args:
        on_host: what `grammars.ship` gave for the batch.
        positions: [B * N] i64, of the nodes.
    """
    shape = (batch.size, len(positions) // batch.size)
    logits = outputs.logits.view(*shape, -1)
    slots = list(batch.slot_ids)
    tokens = parts.sampler.choose(logits, slots, positions.view(shape) + 1, draft, on_host)
    features = None if outputs.hidden is None else outputs.hidden.view(*shape, -1)
    if draft is not None and draft.tree is not None:
        path, accepted = walk_tree(tokens, draft)
        return Verdict(tokens, path, accepted, logits, features)
    return Verdict(tokens, None, count_agreeing(tokens, draft), logits, features)
