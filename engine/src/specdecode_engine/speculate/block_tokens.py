"""Chooses the tokens of a drafted block, from the scores that one forward gave all its positions.

Where the tokens of a block do not depend on each other, all nodes of one depth have the same
children: a tree of marginals. With a Markov head (DSpark) the scores after a node depend on its
token, and on those before it where the head has a state. Letters: B batch, k topk, S steps.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from specdecode_engine.batch.draft import Draft
from specdecode_engine.batch.request_table import DecodeBatch, RequestTable
from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.model.drafts.confidence_head import ConfidenceHead
from specdecode_engine.model.drafts.markov_head import MarkovHead
from specdecode_engine.model.forward import BestTokens, ForwardOutputs
from specdecode_engine.sampling.sampler import Sampler, SamplingBatch
from specdecode_engine.speculate.tree import FirstLevel, TreeLevel, grow_tree, path_scores


class BlockTokens:
    """Chooses chains and trees.

    Args:
        topk: of every draft shape that is a tree.
        target_ids: [draft_vocab] i64, the target's id of every draft id; None: they are equal.
    """

    def __init__(
        self,
        table: RequestTable,
        sampler: Sampler,
        topk: int,
        target_ids: Tensor | None,
        markov: MarkovHead | None = None,
        confidence: ConfidenceHead | None = None,
    ) -> None:
        self._table = table
        self._sampler = sampler
        self._first_level = FirstLevel.of(topk, table.device)
        self._target_ids = target_ids
        self._markov = markov
        self._confidence = confidence

    def choose(
        self,
        batch: DecodeBatch,
        sampling: SamplingBatch,
        shape: DraftShape,
        outputs: ForwardOutputs,
    ) -> Draft:
        """Choose a draft of ids of the target.

        Args:
            outputs: of the positions after each bonus token [B * rows], in order; the first
                `num_steps` of each are used.
        """
        if shape.topk == 1:
            if shape.verify_tokens and self._confidence is not None:
                return self._confident_chain(self._confidence, batch, sampling, shape, outputs)
            return self._chain(batch, sampling, shape, outputs)
        positions = self._table.next_positions(batch, shape.num_steps)
        if self._markov is None:
            tree = self._marginal_tree(sampling, shape, outputs, positions)
        else:
            tree = self._conditional_tree(batch, sampling, shape, outputs, positions)
        return replace(tree, tokens=_to_target(self._target_ids, tree.tokens))

    def _chain(
        self,
        batch: DecodeBatch,
        sampling: SamplingBatch,
        shape: DraftShape,
        outputs: ForwardOutputs,
    ) -> Draft:
        steps = shape.num_steps
        if outputs.best is not None and sampling.params is None and not shape.verify_tokens:
            ids = self._by_position(outputs.best.ids, batch.size)[:, :steps, 0]
            return Draft(shape, _to_target(self._target_ids, ids))
        positions = self._table.next_positions(batch, steps)
        if self._markov is not None:
            return self._markov_chain(self._markov, batch, sampling, shape, outputs, positions)
        logits = self._by_position(outputs.logits, batch.size)[:, :steps].contiguous()
        rows = logits, sampling, positions, self._target_ids
        ids, scores = self._sampler.sample_block(*rows), None
        if shape.verify_tokens:
            scores = self._sampler.block_confidence(*rows).cumsum(dim=1)
        return Draft(shape, _to_target(self._target_ids, ids), scores=scores)

    def _confident_chain(
        self,
        confidence: ConfidenceHead,
        batch: DecodeBatch,
        sampling: SamplingBatch,
        shape: DraftShape,
        outputs: ForwardOutputs,
    ) -> Draft:
        """Choose a chain as where all of it is verified; score it by the confidence head."""
        assert outputs.hidden is not None
        tokens = self._chain(batch, sampling, replace(shape, verify_tokens=0), outputs).tokens
        hidden = self._by_position(outputs.hidden, batch.size)[:, : shape.num_steps]
        bonus = self._table.tokens_at(batch.req_indices, batch.lengths)
        before = torch.cat((bonus[:, None], tokens[:, :-1]), dim=1)
        embedding = None if self._markov is None else self._markov.embedding
        scores = confidence.log_survival(hidden, before, embedding)
        return Draft(shape, tokens, scores=scores)

    def _markov_chain(
        self,
        markov: MarkovHead,
        batch: DecodeBatch,
        sampling: SamplingBatch,
        shape: DraftShape,
        outputs: ForwardOutputs,
        positions: Tensor,
    ) -> Draft:
        confidences: list[Tensor] = []

        def choose(logits: Tensor, step: int) -> Tensor:
            rows = logits, sampling, positions[:, step], self._target_ids
            if shape.verify_tokens:
                confidences.append(self._sampler.draft_confidence(*rows))
            return self._sampler.sample_draft(*rows)

        bonus = self._table.tokens_at(batch.req_indices, batch.lengths)
        ids = draft_chain(markov, bonus, outputs, shape.num_steps, self._target_ids, choose)
        return Draft(shape, _to_target(self._target_ids, ids), scores=path_scores(confidences))

    def _marginal_tree(
        self,
        sampling: SamplingBatch,
        shape: DraftShape,
        outputs: ForwardOutputs,
        positions: Tensor,
    ) -> Draft:
        steps, k = shape.num_steps, shape.topk
        if outputs.best is not None and sampling.params is None:
            parts = [self._by_position(part, len(positions)) for part in outputs.best]
            best = BestTokens(*[part[:, :steps, :k] for part in parts])
        else:
            logits = self._by_position(outputs.logits, len(positions))[:, :steps].contiguous()
            best = self._best(logits, sampling, positions, k)

        def advance(level: TreeLevel) -> BestTokens:
            columns = [part[:, level.step + 1, None].expand(-1, k, -1) for part in best]
            return BestTokens(*columns)

        roots = BestTokens(*[part[:, 0] for part in best])
        return grow_tree(self._sampler.ops, shape, self._first_level, roots, advance)

    def _conditional_tree(
        self,
        batch: DecodeBatch,
        sampling: SamplingBatch,
        shape: DraftShape,
        outputs: ForwardOutputs,
        positions: Tensor,
    ) -> Draft:
        assert self._markov is not None
        markov, k = self._markov, shape.topk
        logits = self._by_position(outputs.logits, batch.size)
        hidden = outputs.hidden
        hidden = None if hidden is None else self._by_position(hidden, batch.size)
        states = markov.first_state(batch.size)[:, None]  # [B, nodes of the level before, rank]

        def after(tokens: Tensor, parents: Tensor | None, step: int) -> BestTokens:
            """Return the best tokens after nodes [B, n] of the target's ids."""
            nonlocal states
            count = tokens.shape[1]
            if parents is None:
                states = states.expand(-1, count, -1)
            else:
                states = states.gather(1, parents[:, :, None].expand(-1, -1, states.shape[2]))
            own = None if hidden is None else hidden[:, step].repeat_interleave(count, dim=0)
            made = markov.step(tokens.flatten(), own, states.flatten(0, 1))
            states = made.state.view(batch.size, count, -1)
            scored = logits[:, step, None] + made.bias.view(batch.size, count, -1)
            places = positions[:, step, None].expand(-1, count)
            return self._best(scored, sampling, places, k)

        def advance(level: TreeLevel) -> BestTokens:
            parents = level.parents[-1] if level.parents else None
            return after(_to_target(self._target_ids, level.tokens), parents, level.step + 1)

        bonus = self._table.tokens_at(batch.req_indices, batch.lengths)
        roots = BestTokens(*[part[:, 0] for part in after(bonus[:, None], None, 0)])
        return grow_tree(self._sampler.ops, shape, self._first_level, roots, advance)

    def _best(
        self, logits: Tensor, sampling: SamplingBatch, positions: Tensor, count: int
    ) -> BestTokens:
        """Return the best tokens [B, n, count] of logits [B, n, draft_vocab]."""
        scores = self._sampler.score_draft(logits, sampling, positions, self._target_ids)
        return BestTokens.of(scores, count)

    def _by_position(self, rows: Tensor, batch_size: int) -> Tensor:
        """From [B * rows, width] to [B, rows, width]."""
        return rows.view(batch_size, -1, rows.shape[-1])


def draft_chain(
    markov: MarkovHead,
    bonus: Tensor,
    outputs: ForwardOutputs,
    steps: int,
    target_ids: Tensor | None,
    choose: Callable[[Tensor, int], Tensor],
) -> Tensor:
    """Choose one token after the other, each with what the one before adds to its scores.

    Args:
        bonus: [B] i64, ids of the target.
        choose: (logits [B, draft_vocab], step): returns ids of the draft [B] i64.

    Returns:
        [B, S] i64, ids of the draft.
    """
    size = len(bonus)
    logits = outputs.logits.view(size, -1, outputs.logits.shape[1])
    hidden = None if outputs.hidden is None else outputs.hidden.view(*logits.shape[:2], -1)
    token, state, drafted = bonus, markov.first_state(size), list[Tensor]()
    for step in range(steps):
        own = None if hidden is None else hidden[:, step]
        bias, state = markov.step(token, own, state)
        drafted.append(choose(logits[:, step] + bias, step))
        token = _to_target(target_ids, drafted[-1])
    return torch.stack(drafted, dim=1)


def _to_target(target_ids: Tensor | None, ids: Tensor) -> Tensor:
    return ids if target_ids is None else target_ids[ids]
