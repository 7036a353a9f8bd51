"""Drafts a chain or a tree from the first logits; the same for every neural draft.

The KV of drafted tokens is stored by node in a scratch that is discarded after the step. A chain
needs no scores, sorts or gathers; a tree node attends to the committed prefix and its ancestors.
"""

from typing import Protocol

import torch
from torch import Tensor

from specdecode_engine.batch.draft import Draft
from specdecode_engine.batch.request_table import DecodeBatch, RequestTable
from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.model.forward import ForwardInputs
from specdecode_engine.sampling.sampler import Sampler
from specdecode_engine.speculate.tree import TreeLevel, grow_tree


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
        self, batch: DecodeBatch, shape: DraftShape, first: Tensor, cell: DraftStepFunction
    ) -> Draft:
        """Draft after each bonus token.

        Args:
            first: [B, draft_vocab] float, logits after the bonus tokens.
        """
        if shape.topk == 1:
            return Draft(shape, self._expand_chain(batch, shape.num_steps, first, cell))
        return self._expand_tree(batch, shape, first, cell)

    def _expand_chain(
        self, batch: DecodeBatch, num_steps: int, logits: Tensor, cell: DraftStepFunction
    ) -> Tensor:
        slots, drafted = list(batch.slot_ids), []
        prefix = batch.lengths + self._prefix_rows
        layout = self._table.prefix_layout(batch, prefix, 1)
        for step in range(num_steps):
            positions = batch.lengths + 1 + step
            token = self._sampler.sample_draft(logits, slots, positions, self._target_ids)
            drafted.append(token)
            if step + 1 < num_steps:
                logits = cell(ForwardInputs(token, prefix + step, layout, first=step), None)
        return torch.stack(drafted, dim=1)

    def _expand_tree(
        self, batch: DecodeBatch, shape: DraftShape, first: Tensor, cell: DraftStepFunction
    ) -> Draft:
        k = shape.topk
        prefix = (batch.lengths + self._prefix_rows).repeat_interleave(k)
        layout = self._table.prefix_layout(batch, prefix, k)

        def advance(frontier: TreeLevel) -> Tensor:
            step = frontier.step
            ids = self._to_target(frontier.tokens).flatten()
            inputs = ForwardInputs(ids, prefix + step, layout, mask=frontier.mask, first=step * k)
            logits = cell(inputs, frontier.parents)
            return self._score(logits.view(batch.size, k, -1), batch, step + 1)

        draft = grow_tree(
            self._sampler.ops, shape, self._score(first[:, None], batch, 0)[:, 0], advance
        )
        return Draft(shape, self._to_target(draft.tokens), draft.tree)

    def _score(self, logits: Tensor, batch: DecodeBatch, depth: int) -> Tensor:
        """Log-probabilities [B, k, draft_vocab] f32 of the tokens after nodes of one depth."""
        positions = (batch.lengths + 1 + depth)[:, None].expand(-1, logits.shape[1])
        return self._sampler.score_draft(logits, list(batch.slot_ids), positions, self._target_ids)

    def _to_target(self, ids: Tensor) -> Tensor:
        return ids if self._target_ids is None else self._target_ids[ids]
