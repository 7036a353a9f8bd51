"""Verification: the target's token at every node, and the path on which the draft agrees.

A step computes a row per node of many things: KV of every layer, tokens, hidden states, logits.
Only the rows of the accepted path are kept, in order, by `gather_accepted` and `compact_kv`; their
width is that of the longest path, not of the tree.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from specdecode_engine.batch.draft import Draft
from specdecode_engine.batch.request_table import DecodeBatch, RequestTable
from specdecode_engine.model.forward import ForwardInputs, ForwardOutputs
from specdecode_engine.model.kv_cache import KVCache
from specdecode_engine.sampling.grammar_masks import DraftOnHost
from specdecode_engine.steps.model_context import ModelContext
from specdecode_kernels import Backend


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """The target's tokens and the accepted path.

    The token at the path's last accepted node is the next bonus token.
    """

    tokens: Tensor  # [B, N] i64
    path: Tensor | None  # [B, path_length] i64; None for a chain, whose path is its nodes
    accepted: Tensor  # [B] i64, drafted tokens on the path
    logits: Tensor  # [B, N, vocab]
    aux_hidden_states: Tensor | None  # [B, N, width]


def lay_out_nodes(context: ModelContext, batch: DecodeBatch, draft: Draft | None) -> ForwardInputs:
    """Arrange the bonus tokens and their draft as chains, or as the draft's trees."""
    bonus, tree = batch.bonus[:, None], None if draft is None else draft.tree
    ids = bonus if draft is None else torch.cat([bonus, draft.tokens], dim=1)
    if tree is not None:
        rows = context.table.node_rows(batch, tree.depths)
    else:
        rows = context.table.window_rows(batch, batch.lengths, ids.shape[1])
    mask = None if tree is None else tree.ancestry
    return ForwardInputs(ids.flatten(), rows.positions, rows.layout, rows.slot_mapping, mask=mask)


def accept(
    context: ModelContext,
    batch: DecodeBatch,
    draft: Draft | None,
    on_host: DraftOnHost | None,
    positions: Tensor,
    outputs: ForwardOutputs,
) -> VerifyResult:
    """Sample the target's token at every node and accept the draft up to the first difference.

    Args:
        on_host: what `grammars.ship` returned for the batch.
        positions: [B * N] i64, of the nodes.
    """
    shape = (batch.size, len(positions) // batch.size)
    logits = outputs.logits.view(*shape, -1)
    slots = list(batch.slot_ids)
    tokens = context.sampler.sample(logits, slots, positions.view(shape) + 1, draft, on_host)
    aux = None if outputs.hidden is None else outputs.hidden.view(*shape, -1)
    if draft is not None and draft.tree is not None:
        path, accepted = verify_tree(context.ops, tokens, draft)
        return VerifyResult(tokens, path, accepted, logits, aux)
    accepted = count_accepted(context.ops, tokens, draft)
    return VerifyResult(tokens, None, accepted, logits, aux)


def count_accepted(ops: Backend, tokens: Tensor, draft: Draft | None) -> Tensor:
    """Count the drafted tokens of a chain before the first that differs from the target's.

    Args:
        tokens: [B, N] i64, the target's token at every node.

    Returns:
        [B] i64.
    """
    if draft is None:
        return torch.zeros(len(tokens), dtype=torch.int64, device=tokens.device)
    accepted, _ = ops.verify_chain(tokens, draft.tokens)
    return accepted


def verify_tree(ops: Backend, tokens: Tensor, draft: Draft) -> tuple[Tensor, Tensor]:
    """Follow the target's tokens from the root down.

    Args:
        tokens: [B, N] i64, the target's token at every node.

    Returns:
        Nodes on the path [B, path_length] i64, root first, padded with the path's last node,
        and the number of drafted tokens among them [B] i64.
    """
    assert draft.tree is not None
    path, accepted, _ = ops.verify_tree(
        tokens, draft.tokens, draft.tree.parents, draft.shape.path_length
    )
    return path, accepted


def gather_accepted(ops: Backend, values: Tensor, path: Tensor | None) -> Tensor:
    """Keep the rows of the path: [B, N, ...] to [B, path_length, ...]; all of them for a chain."""
    return values if path is None else ops.gather_accepted(values, path)


def compact_kv(pool: KVCache, table: RequestTable, batch: DecodeBatch, path: Tensor) -> None:
    """Move the path's KV rows of every layer to the front, where a chain would have put them."""
    pool.ops.compact_kv(
        pool.k, pool.v, table.pages, batch.slots, batch.lengths, path, pool.page_size
    )
