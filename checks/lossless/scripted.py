"""Drafters that know the answer: how often they are right is chosen, not learned.

They read the committed tokens, look up which known text these begin, and propose what comes next
(right), something else (wrong), or either by a coin that depends on the position alone. In a tree
the right token stands at a random place among its siblings, so that paths of every form are walked.
For tests: exact expectations for accept lengths, compaction and leaks.
"""

import random
from collections.abc import Sequence as Items

import torch
from torch import Tensor

from specdecode_engine.batch.draft import Draft
from specdecode_engine.batch.request_table import DecodeBatch, RequestTable, Span
from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.sampling.sampler import SamplingBatch
from specdecode_engine.speculate.tree import link
from specdecode_kernels import TORCH


class ScriptedDrafter:
    """Proposes known continuations.

    Args:
        table: the engine's slots, to read what is committed.
        texts: every text (prompt and answer) that may be decoded.
        vocab: size of the vocabulary.
        right: chance that a drafted level contains the right token; 1 is the oracle, 0 the
            adversary.
    """

    lookahead = 0
    bonus_rows = 1
    computes_late = False

    def __init__(
        self, table: RequestTable, texts: Items[Items[int]], vocab: int, right: float
    ) -> None:
        self._table = table
        self._texts = [tuple(text) for text in texts]
        self._vocab = vocab
        self._right = right

    def open(self, req_index: int, rows: int = 0, length: int = 0) -> None:
        """Nothing is kept per slot."""

    def is_complete(self, req_index: int) -> bool:
        """There are no rows that could lack anything."""
        return True

    def prefill(self, spans: Items[Span], aux_hidden_states: Tensor | None) -> None:
        """Nothing is computed."""

    def skip(self, req_indices: Items[int]) -> None:
        """Nothing is kept."""

    def clear(self, req_index: int, start: int, end: int) -> None:
        """There are no rows."""

    def update_after_verify(
        self, batch: DecodeBatch, most_rows: tuple[int, ...], aux_hidden_states: Tensor | None
    ) -> None:
        """Nothing is learned."""

    def draft(self, batch: DecodeBatch, sampling: SamplingBatch, shape: DraftShape) -> Draft:
        """Draft what comes next, right or wrong."""
        rows = [self._draft_one(batch, row, shape) for row in range(batch.size)]
        tokens = torch.tensor([row[0] for row in rows])
        if shape.topk == 1:
            return Draft(shape, tokens)
        parents = torch.tensor([[0, *row[1]] for row in rows])
        return Draft(shape, tokens, link(TORCH, parents, shape.num_steps))

    def _draft_one(
        self, batch: DecodeBatch, row: int, shape: DraftShape
    ) -> tuple[list[int], list[int]]:
        length = int(batch.lengths[row])
        req_indices = batch.req_indices[row].expand(length + 1)
        committed = tuple(self._table.tokens_at(req_indices, torch.arange(length + 1)).tolist())
        text = next((t for t in self._texts if t[: length + 1] == committed), committed)
        rng = random.Random(f"{len(text)}/{length}")
        levels = _level_sizes(rng, shape)
        tokens: list[int] = []
        parents: list[int] = []
        trunk: int | None = 0
        before = [0]
        for depth, size in enumerate(levels, start=1):
            place = length + depth
            truth = text[place] if place < len(text) else rng.randrange(self._vocab)
            first = len(tokens) + 1
            is_right = trunk is not None and rng.random() < self._right
            heirs = self._grow(rng, size, before, shape.topk, trunk, truth, is_right)
            tokens += [token for token, _ in heirs]
            parents += [parent for _, parent in heirs]
            right = [
                first + index
                for index, (token, parent) in enumerate(heirs)
                if parent == trunk and token == truth
            ]
            trunk = right[0] if right else None
            before = list(range(first, first + size))
        return tokens, parents

    def _grow(
        self,
        rng: random.Random,
        size: int,
        before: list[int],
        topk: int,
        trunk: int | None,
        truth: int,
        is_right: bool,
    ) -> list[tuple[int, int]]:
        """Make one level: (token, parent) of each node, siblings all different."""
        req_indices = sorted(rng.sample([parent for parent in before for _ in range(topk)], size))
        level: list[tuple[int, int]] = []
        for parent in sorted(set(req_indices)):
            count = req_indices.count(parent)
            others = [token for token in range(self._vocab) if token != truth]
            children = rng.sample(others, count)
            if parent == trunk and is_right:
                children[rng.randrange(count)] = truth
            level += [(token, parent) for token in children]
        if is_right and trunk is not None and trunk not in req_indices:
            level[0] = (truth, trunk)  # the trunk continues although the sample left it out
            level.sort(key=lambda node: node[1])
        return level


def _level_sizes(rng: random.Random, shape: DraftShape) -> list[int]:
    """Split the nodes over the levels: at least one each while they last, within the bounds."""
    left = shape.num_tokens - 1
    if shape.topk == 1:
        return [1] * left
    sizes = [1] * min(shape.num_steps, left)
    left -= len(sizes)
    while left > 0:
        limits = [shape.topk, *(shape.topk * size for size in sizes)]
        open_levels = [d for d in range(len(sizes)) if sizes[d] < limits[d]]
        level = rng.choice(open_levels)
        sizes[level] += 1
        left -= 1
    return sizes
