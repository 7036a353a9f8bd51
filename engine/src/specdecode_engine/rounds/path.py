"""Which drafted nodes the target agrees with, and moving everything that belongs to them.

A round computes a row per node for many things: KV of every layer, tokens, features, logits, and
whatever else a model hands out per node. Only the rows of the accepted path stay, in order. All of
it goes through `take_path` and `move_kv`; their width is that of the longest path, not of the tree.
"""

import torch
from torch import Tensor

import specdecode_kernels as ops
from specdecode_engine.draft import Draft
from specdecode_engine.forward.kv_pool import KvPool
from specdecode_engine.slots import DecodeBatch, SlotTable


def count_agreeing(tokens: Tensor, draft: Draft | None) -> Tensor:
    """Count the drafted tokens of a chain before the first that the target did not choose.

    Args:
        tokens: [B, N] i64, the target's choice at every node.

    Returns:
        [B] i64.
    """
    if draft is None:
        return torch.zeros(len(tokens), dtype=torch.int64, device=tokens.device)
    accepted, _ = ops.walk_chain(tokens, draft.tokens)
    return accepted


def walk_tree(tokens: Tensor, draft: Draft) -> tuple[Tensor, Tensor]:
    """Follow the target's choices from the root down.

    Args:
        tokens: [B, N] i64, the target's choice at every node.

    Returns:
        Nodes on the path [B, path_length] i64, root first, filled up with the path's last node,
        and the number of drafted tokens among them [B] i64.
    """
    assert draft.tree is not None
    path, accepted, _ = ops.walk_tree(
        tokens, draft.tokens, draft.tree.parents, draft.shape.path_length
    )
    return path, accepted


def take_path(values: Tensor, path: Tensor | None) -> Tensor:
    """Keep the rows of the path: [B, N, ...] to [B, path_length, ...]; all of them for a chain."""
    return values if path is None else ops.take_path(values, path)


def move_kv(pool: KvPool, table: SlotTable, batch: DecodeBatch, path: Tensor) -> None:
    """Move the path's KV rows of every layer to the front, where a chain would have put them."""
    ops.move_kv(pool.k, pool.v, table.pages, batch.slots, batch.lengths, path, pool.page_size)
