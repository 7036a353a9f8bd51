"""Drafts a chain or a tree from the first logits; the same for every draft model.

The KV of drafted tokens is stored by node in a scratch that is discarded after the step. A chain
needs no scores, sorts or gathers; a tree node attends to the committed prefix and its ancestors.

A tree has topk children per node, of which the best nodes are kept, as in EAGLE-2 (Li et al.,
"EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees", 2024).
Every step expands the k best nodes of the step before; all candidates stay in a pool, from which
the best are taken at the end. Scores are sums of log-probabilities in float32, so a child never
scores above its parent; ties go to the lower index, which is the parent's. Hence the chosen set
always contains the ancestors of its members. Letters: B batch, k topk, S steps, V draft vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specdecode_engine.batch.draft import Draft, Tree
from specdecode_engine.batch.request_table import DecodeBatch, RequestTable
from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.model.forward import ForwardInputs
from specdecode_engine.sampling.sampler import Sampler, SamplingBatch
from specdecode_kernels import Backend


class DraftStepFunction(Protocol):
    """One forward pass over drafted tokens; it keeps the state that the next pass needs."""

    def __call__(self, inputs: ForwardInputs, parents: Tensor | None) -> Tensor:
        """Return the logits after the tokens.

        Args:
            inputs: k drafted tokens per sequence, in ids of the target, without `hidden`.
            parents: [B, k] i64, indices of their parents in the previous pass; None if k is 1.

        Returns:
            [B * k, draft_vocab] float.
        """
        ...


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


class DraftTreeBuilder:
    """Expands drafts of one model.

    Args:
        prefix_rows: pool rows that a draft row sees beyond the computed tokens: 1 if the bonus
            token has its own row. The rotary position of the first drafted token equals the number
            of rows it sees.
        target_ids: [draft_vocab] i64, if the draft's vocabulary is not the target's.
    """

    def __init__(
        self,
        table: RequestTable,
        sampler: Sampler,
        prefix_rows: int,
        target_ids: Tensor | None = None,
    ) -> None:
        self._table = table
        self._sampler = sampler
        self._prefix_rows = prefix_rows
        self._target_ids = target_ids

    def expand(
        self,
        batch: DecodeBatch,
        sampling: SamplingBatch,
        shape: DraftShape,
        first: Tensor,
        draft_step: DraftStepFunction,
    ) -> Draft:
        """Draft after each bonus token.

        Args:
            sampling: of the batch.
            first: [B, draft_vocab] float, logits after the bonus tokens.
        """
        if shape.topk == 1:
            tokens = self._expand_chain(batch, sampling, shape.num_steps, first, draft_step)
            return Draft(shape, tokens)
        return self._expand_tree(batch, sampling, shape, first, draft_step)

    def _expand_chain(
        self,
        batch: DecodeBatch,
        sampling: SamplingBatch,
        num_steps: int,
        logits: Tensor,
        draft_step: DraftStepFunction,
    ) -> Tensor:
        drafted = []
        prefix = batch.lengths + self._prefix_rows
        layout = self._table.prefix_layout(batch, prefix, 1)
        for step in range(num_steps):
            positions = batch.lengths + 1 + step
            token = self._sampler.sample_draft(logits, sampling, positions, self._target_ids)
            drafted.append(token)
            if step + 1 < num_steps:
                logits = draft_step(ForwardInputs(token, prefix + step, layout, first=step), None)
        return torch.stack(drafted, dim=1)

    def _expand_tree(
        self,
        batch: DecodeBatch,
        sampling: SamplingBatch,
        shape: DraftShape,
        first: Tensor,
        draft_step: DraftStepFunction,
    ) -> Draft:
        k = shape.topk
        prefix = (batch.lengths + self._prefix_rows).repeat_interleave(k)
        layout = self._table.prefix_layout(batch, prefix, k)

        def score(logits: Tensor, depth: int) -> Tensor:
            """Log-probabilities [B, k, draft_vocab] f32 of the tokens after nodes of one depth."""
            positions = (batch.lengths + 1 + depth)[:, None].expand(-1, logits.shape[1])
            return self._sampler.score_draft(logits, sampling, positions, self._target_ids)

        def advance(frontier: TreeLevel) -> Tensor:
            step = frontier.step
            ids = self._to_target(frontier.tokens).flatten()
            inputs = ForwardInputs(ids, prefix + step, layout, mask=frontier.mask, first=step * k)
            logits = draft_step(inputs, frontier.parents)
            return score(logits.view(batch.size, k, -1), step + 1)

        draft = grow_tree(self._sampler.ops, shape, score(first[:, None], 0)[:, 0], advance)
        return Draft(shape, self._to_target(draft.tokens), draft.tree)

    def _to_target(self, ids: Tensor) -> Tensor:
        return ids if self._target_ids is None else self._target_ids[ids]


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
    # Scores, tokens and parents of all candidates, by step. A parent is an index over all of them,
    # -1 for the root.
    candidates = [(scores, tokens, torch.full_like(tokens, -1))]
    count = k
    places = torch.arange(k, device=first.device).expand_as(tokens)
    own_rows = torch.eye(k, dtype=torch.bool, device=first.device).expand(len(tokens), k, k)
    frontier = TreeLevel(0, tokens, torch.zeros_like(tokens), own_rows)
    for step in range(1, shape.num_steps):
        children, ids = _best(advance(frontier), k)  # [B, k, k]
        scores, ids = (scores[:, :, None] + children).flatten(1), ids.flatten(1)
        candidates.append((scores, ids, places.repeat_interleave(k, dim=1)))
        if step + 1 < shape.num_steps:
            chosen = _stable_top(scores, k)  # [B, k] of k * k
            scores = scores.gather(1, chosen)
            places = count + chosen
            frontier = _next_frontier(frontier, chosen // k, ids.gather(1, chosen), own_rows)
            count += k * k
    pool = [torch.cat(column, dim=1) for column in zip(*candidates, strict=True)]
    # The best nodes of all, in breadth-first order.
    tokens, parents = ops.select_tree_nodes(pool[0], pool[1], pool[2], shape.num_tokens - 1)
    return Draft(shape, tokens, link(ops, parents, shape.num_steps))


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


def link(ops: Backend, parents: Tensor, num_steps: int) -> Tree:
    """Compute the depths and ancestry of nodes from their parents [B, N] i64."""
    depths, ancestry = ops.build_tree_mask(parents, num_steps)
    return Tree(parents, depths, ancestry)
