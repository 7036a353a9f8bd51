"""Drafts a chain or a tree from the first logits; the same for every draft model.

The KV of drafted tokens is stored by node in a scratch that is discarded after the step. A chain
needs no sorts or gathers, and scores only where not all of it is verified; a tree node attends to
the committed prefix and its ancestors.

A tree has topk children per node, of which the best nodes are kept, as in EAGLE-2 (Li et al.,
"EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees", 2024).
Every step expands the k best nodes of the step before; all candidates stay in a pool, from which
the best are taken at the end. Scores are sums of log-probabilities in float32, so a child never
scores above its parent; ties go to the lower index, which is the parent's. Hence the chosen set
always contains the ancestors of its members. Letters: B batch, k topk, S steps, V draft vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specdecode_engine.batch.decode_inputs import DecodeInputs
from specdecode_engine.batch.draft import Draft, Tree
from specdecode_engine.batch.request_table import DecodeBatch, RequestTable
from specdecode_engine.batch.shapes import DraftShape, ForwardKind
from specdecode_engine.graphs.cache import GraphCache
from specdecode_engine.model.forward import BestTokens, ForwardOutputs
from specdecode_engine.sampling.sampler import Sampler, SamplingBatch
from specdecode_kernels import Backend

DraftStepFunction = Callable[[DecodeInputs], ForwardOutputs]
"""One forward over k drafted tokens per sequence, in ids of the draft, given without `hidden`; it
keeps the state that the next forward needs."""


class RecurrentStep:
    """Forwards over drafted tokens; a head reads its own output for each node's parent."""

    def __init__(self, graphs: GraphCache, recurrent: Tensor | None) -> None:
        self._graphs = graphs
        self._recurrent = recurrent  # [B, width] of the roots, then [B * k, width]

    def __call__(self, inputs: DecodeInputs) -> ForwardOutputs:
        inputs = inputs._replace(hidden=self._recurrent)
        outputs = self._graphs.run(ForwardKind.DRAFT_STEP, inputs)
        self._recurrent = outputs.hidden
        return outputs


class DraftRows(Protocol):
    """What a draft of any kind is expanded with."""

    table: RequestTable
    target_ids: Tensor | None  # [draft_vocab] i64, if the draft's vocabulary is not the target's

    def to_target(self, ids: Tensor) -> Tensor:
        """Map ids of the draft's vocabulary to the target's."""
        ...


class TreeLevel(NamedTuple):
    """The nodes that a step expands."""

    tokens: Tensor  # [B, k] i64, ids of the draft's vocabulary
    # [B, k] i64 each, indices into the level before: of the levels from the second to this one
    parents: tuple[Tensor, ...] = ()

    @property
    def step(self) -> int:
        return len(self.parents)


class DraftTreeBuilder:
    """Expands drafts of one model."""

    def __init__(self, layout: DraftRows, sampler: Sampler, topk: int) -> None:
        self._layout = layout
        self._sampler = sampler
        self._first_level = FirstLevel.of(topk, layout.table.device)

    def expand(
        self,
        batch: DecodeBatch,
        sampling: SamplingBatch,
        shape: DraftShape,
        first: ForwardOutputs,
        draft_step: DraftStepFunction,
    ) -> Draft:
        """Draft after each bonus token.

        Args:
            sampling: of the batch.
            first: outputs for the bonus tokens.
        """
        if shape.topk == 1:
            return self._expand_chain(batch, sampling, shape, first, draft_step)
        return self._expand_tree(batch, sampling, shape, first, draft_step)

    def _expand_chain(
        self,
        batch: DecodeBatch,
        sampling: SamplingBatch,
        shape: DraftShape,
        outputs: ForwardOutputs,
        draft_step: DraftStepFunction,
    ) -> Draft:
        num_steps = shape.num_steps
        drafted, confidences = list[Tensor](), list[Tensor]()
        positions = self._layout.table.next_positions(batch, num_steps) if sampling.params else None
        for step in range(num_steps):
            # Positions are not read where every request is greedy.
            place = batch.lengths if positions is None else positions[:, step]
            if outputs.best is not None and positions is None:
                token = outputs.best.ids[:, 0]
            else:
                token = self._sample(outputs, sampling, place)
            drafted.append(token)
            if shape.verify_tokens:
                rows = outputs.logits, sampling, place, self._target_ids(outputs)
                confidences.append(self._sampler.draft_confidence(*rows))
            if step + 1 < num_steps:
                outputs = draft_step(_inputs(batch, token.unsqueeze(1), step))
        tokens = self._layout.to_target(torch.stack(drafted, dim=1))
        return Draft(shape, tokens, scores=path_scores(confidences))

    def _target_ids(self, outputs: ForwardOutputs) -> Tensor | None:
        """Return the target's ids of the columns that are scored; None: the columns are the ids."""
        return self._layout.target_ids if outputs.ids is None else outputs.ids[:, None]

    def _sample(self, outputs: ForwardOutputs, sampling: SamplingBatch, places: Tensor) -> Tensor:
        """Sample the token [B] after each row, of those that are scored."""
        ids = self._target_ids(outputs)
        columns = self._sampler.sample_draft(outputs.logits, sampling, places, ids)
        return columns if outputs.ids is None else outputs.ids.gather(1, columns[:, None])[:, 0]

    def _expand_tree(
        self,
        batch: DecodeBatch,
        sampling: SamplingBatch,
        shape: DraftShape,
        first: ForwardOutputs,
        draft_step: DraftStepFunction,
    ) -> Draft:
        k = shape.topk

        def best(outputs: ForwardOutputs, depth: int) -> BestTokens:
            """The best tokens [B, nodes, k] after nodes of one depth."""
            if outputs.best is not None and sampling.params is None:
                return BestTokens(*[column.view(batch.size, -1, k) for column in outputs.best])
            columns = outputs.logits.shape[1]
            logits = outputs.logits.view(batch.size, -1, columns)
            ids = None if outputs.ids is None else outputs.ids.view(batch.size, -1, columns)
            # Positions are not read where every request is greedy.
            place = batch.lengths + (1 + depth) if sampling.params else batch.lengths
            positions = place[:, None].expand(-1, logits.shape[1])
            target_ids = self._layout.target_ids if ids is None else ids
            scores = self._sampler.score_draft(logits, sampling, positions, target_ids)
            return BestTokens.of(scores, k, ids)

        def advance(frontier: TreeLevel) -> BestTokens:
            inputs = _inputs(batch, frontier.tokens, frontier.step)
            outputs = draft_step(inputs._replace(parents=frontier.parents))
            return best(outputs, frontier.step + 1)

        roots = BestTokens(*[column[:, 0] for column in best(first, 0)])
        draft = grow_tree(self._sampler.ops, shape, self._first_level, roots, advance)
        return replace(draft, tokens=self._layout.to_target(draft.tokens))


def path_scores(confidences: list[Tensor]) -> Tensor | None:
    """Add up the scores [B] of the tokens of a chain, [B, S]; None without any."""
    return torch.stack(confidences, dim=1).cumsum(dim=1) if confidences else None


def _inputs(batch: DecodeBatch, tokens: Tensor, step: int) -> DecodeInputs:
    """Inputs of a forward over drafted tokens [B, k]."""
    k = tokens.shape[1]
    return DecodeInputs(batch.req_indices, batch.longest, k, tokens, first=step * k, batch=batch)


@dataclass(frozen=True, slots=True, eq=False)
class FirstLevel:
    """The children of the root: what is the same in every tree of one topk."""

    parents: Tensor  # [1, k] i64: the root, -1
    places: Tensor  # [1, k] i64, among all candidates

    @classmethod
    def of(cls, topk: int, device: torch.device) -> "FirstLevel":
        places = torch.arange(topk, device=device)[None]
        return cls(torch.full_like(places, -1), places)


def grow_tree(
    ops: Backend,
    shape: DraftShape,
    level: FirstLevel,
    roots: BestTokens,
    advance: Callable[[TreeLevel], BestTokens],
) -> Draft:
    """Grow a tree; its tokens are ids of the draft's vocabulary.

    Args:
        roots: [B, k], the best tokens after the root.
        advance: returns the best tokens [B, k, k] after the nodes of a level, good until its next
            call.
    """
    k, (scores, tokens) = shape.topk, roots
    batch = len(tokens)
    places = level.places.expand(batch, -1)
    # Scores of all candidates, and their tokens and parents [B, 2, count], by step. A parent is an
    # index over all of them, -1 for the root.
    all_scores = [scores]
    nodes = [torch.stack((tokens, level.parents.expand(batch, -1)), dim=1)]
    count = k
    frontier = TreeLevel(tokens)
    for step in range(1, shape.num_steps):
        children = advance(frontier)
        scores = (scores[:, :, None] + children.scores).flatten(1)
        parents = places[:, :, None].expand(-1, -1, k)
        all_scores.append(scores)
        nodes.append(torch.stack((children.ids, parents), dim=1).flatten(2))
        if step + 1 < shape.num_steps:
            scores, chosen = _stable_top(scores, k)  # [B, k] of k * k
            places = chosen + count
            tokens = nodes[-1][:, 0].gather(1, chosen)
            frontier = TreeLevel(tokens, (*frontier.parents, chosen // k))
            count += k * k
    pool = torch.cat(nodes, dim=2)
    # The best nodes of all, the best first: any number of first ones is a tree.
    pooled, drafted = torch.cat(all_scores, dim=1), shape.num_tokens - 1
    tokens, parents = ops.select_tree_nodes(pooled, pool[:, 0], pool[:, 1], drafted)
    best = pooled.topk(drafted, dim=1).values if shape.verify_tokens else None
    return Draft(shape, tokens, link(ops, parents, shape.num_steps), best)


def _stable_top(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The best `count` of [B, n] and their indices; ties go to the lower index."""
    values, indices = torch.sort(scores, dim=1, descending=True, stable=True)
    return values[:, :count], indices[:, :count]


def link(ops: Backend, parents: Tensor, num_steps: int) -> Tree:
    """Compute the depths and ancestry of nodes from their parents [B, N] i64."""
    depths, ancestry = ops.build_tree_mask(parents, num_steps)
    return Tree(parents, depths, ancestry)
