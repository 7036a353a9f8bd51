"""Which drafted nodes the target agrees with, and moving everything that belongs to them.

A round computes a row per node for many things: KV of every layer, tokens, features, logits, and
whatever else a model hands out per node. Only the rows of the accepted path stay, in order. All of
it goes through `take_path` and `move_kv`; their width is that of the longest path, not of the tree.
"""

import torch
from torch import Tensor

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
    agrees = (draft.tokens == tokens[:, :-1]).to(torch.int64)
    return agrees.cumprod(dim=1).sum(dim=1)


def walk_tree(tokens: Tensor, draft: Draft) -> tuple[Tensor, Tensor]:
    """Follow the target's choices from the root down.

    Siblings carry different tokens, so at most one child of a node agrees and the agreeing nodes
    form one path.

    Args:
        tokens: [B, N] i64, the target's choice at every node.

    Returns:
        Nodes on the path [B, path_length] i64, root first, filled up with the path's last node,
        and the number of drafted tokens among them [B] i64.
    """
    assert draft.tree is not None
    parents = draft.tree.parents
    chosen = tokens.gather(1, parents)[:, 1:] == draft.tokens
    agrees = torch.nn.functional.pad(chosen, (1, 0), value=True)
    reached = torch.zeros_like(agrees)
    reached[:, 0] = True
    for _ in range(draft.shape.path_length - 1):
        reached = agrees & reached.gather(1, parents)
        reached[:, 0] = True
    accepted = reached.sum(dim=1) - 1
    width = draft.shape.path_length
    # Nodes stand breadth first, so a path's nodes ascend: reached ones first, each side in order.
    order = torch.sort((~reached).to(torch.int8), dim=1, stable=True).indices[:, :width]
    steps = torch.arange(width, device=tokens.device).clamp(max=accepted[:, None])
    return order.gather(1, steps), accepted


def take_path(values: Tensor, path: Tensor | None) -> Tensor:
    """Keep the rows of the path: [B, N, ...] to [B, path_length, ...]; all of them for a chain."""
    if path is None:
        return values
    index = path.view(*path.shape, *(1,) * (values.dim() - 2))
    return values.gather(1, index.expand(-1, -1, *values.shape[2:]))


def move_kv(pool: KvPool, table: SlotTable, batch: DecodeBatch, path: Tensor) -> None:
    """Move the path's KV rows of every layer to the front, where a chain would have written them.

    Rows are gathered before any is written, since one's place may be another's source.
    """
    width = path.shape[1]
    slots = batch.slots.repeat_interleave(width)
    steps = torch.arange(width, device=path.device)
    sources = table.pool_rows(slots, (batch.lengths[:, None] + path).flatten())
    places = table.pool_rows(slots, (batch.lengths[:, None] + steps).flatten())
    pool.k[:, places] = pool.k[:, sources]
    pool.v[:, places] = pool.v[:, sources]
