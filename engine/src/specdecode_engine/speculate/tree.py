"""Grows a draft tree: topk children per node, the best nodes kept, as in EAGLE-2.

Source: Li et al., "EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees", 2024.
Every step expands the k best nodes of the step before; all candidates stay in a pool, from which
the best are taken at the end. Scores are sums of log-probabilities in float32, so a child never
scores above its parent; ties go to the lower index, which is the parent's. Hence the chosen set
always contains the ancestors of its members. Letters: B batch, k topk, S steps, V draft vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specdecode_engine.batch.draft import Draft, Tree
from specdecode_engine.batch.shapes import DraftShape
from specdecode_kernels import Backend


@dataclass(frozen=True, slots=True)
class TreeLevel:
    """The nodes that a step expands.

    `mask` marks which scratch rows each node sees: its ancestors and itself; rows are numbered
    step by step, k in each.
    """

    step: int
    tokens: Tensor  # [B, k] i64, ids of the draft's vocabulary
    parents: Tensor  # [B, k] i64, indices into the previous level; 0 at step 0
    mask: Tensor  # [B, k, (step + 1) * k] bool


@dataclass(frozen=True, slots=True)
class _Pool:
    """All candidates so far, flat; parents are flat indices too, -1 for the root."""

    scores: Tensor  # [B, candidates] f32
    tokens: Tensor  # [B, candidates] i64
    parents: Tensor  # [B, candidates] i64

    def extended(self, scores: Tensor, tokens: Tensor, parents: Tensor) -> "_Pool":
        return _Pool(
            torch.cat([self.scores, scores], dim=1),
            torch.cat([self.tokens, tokens], dim=1),
            torch.cat([self.parents, parents], dim=1),
        )


def grow_tree(
    ops: Backend, shape: DraftShape, first: Tensor, advance: Callable[[TreeLevel], Tensor]
) -> Draft:
    """Grow a tree; its tokens are ids of the draft's vocabulary.

    Args:
        first: [B, V] f32 log-probabilities of the tokens after the root.
        advance: returns the log-probabilities [B, k, V] f32 after the nodes of a level.
    """
    k = shape.topk
    scores, tokens = _best(first, k)
    root = torch.full_like(tokens, -1)
    pool = _Pool(scores, tokens, root)
    places = torch.arange(k, device=first.device).expand_as(tokens)
    own_rows = torch.eye(k, dtype=torch.bool, device=first.device).expand(len(tokens), k, k)
    frontier = TreeLevel(0, tokens, torch.zeros_like(tokens), own_rows)
    for step in range(1, shape.num_steps):
        children, ids = _best(advance(frontier), k)  # [B, k, k]
        scores = (scores[:, :, None] + children).flatten(1)
        base = pool.scores.shape[1]
        pool = pool.extended(scores, ids.flatten(1), places.repeat_interleave(k, dim=1))
        if step + 1 < shape.num_steps:
            chosen = _stable_top(scores, k)  # [B, k] of k * k
            scores = scores.gather(1, chosen)
            places = base + chosen
            frontier = _next_frontier(
                frontier, chosen // k, ids.flatten(1).gather(1, chosen), own_rows
            )
    return _take_best(ops, shape, pool)


def _next_frontier(
    before: TreeLevel, parents: Tensor, tokens: Tensor, own_rows: Tensor
) -> TreeLevel:
    width = before.mask.shape[2]
    inherited = before.mask.gather(1, parents[:, :, None].expand(-1, -1, width))
    return TreeLevel(before.step + 1, tokens, parents, torch.cat([inherited, own_rows], dim=2))


def _best(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The best `count` of the last dimension and their ids; NaN counts as impossible."""
    values, ids = torch.topk(torch.nan_to_num(scores, nan=-torch.inf), count, dim=-1)
    return values, ids


def _stable_top(scores: Tensor, count: int) -> Tensor:
    """Indices of the best `count` of [B, n]; ties go to the lower index."""
    return torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :count]


def _take_best(ops: Backend, shape: DraftShape, pool: _Pool) -> Draft:
    """Take the best nodes of the pool, in breadth-first order, and link them."""
    count = shape.num_tokens - 1
    tokens, parents = ops.select_tree_nodes(pool.scores, pool.tokens, pool.parents, count)
    return Draft(shape, tokens, link(ops, parents, shape.num_steps))


def link(ops: Backend, parents: Tensor, num_steps: int) -> Tree:
    """Compute the depths and ancestry of nodes from their parents [B, N] i64."""
    depths, ancestry = ops.build_tree_mask(parents, num_steps)
    return Tree(parents, depths, ancestry)
