"""Growing a tree: against a slow reference, closed under ancestors, stable under ties."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode_api.speculation import max_tree_tokens
from specdecode_engine.batch.draft import Draft
from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.model.forward import BestTokens
from specdecode_engine.speculate.draft_layout import scratch_mask
from specdecode_engine.speculate.tree import FirstLevel, TreeLevel, grow_tree
from specdecode_kernels import TORCH

VOCAB = 20


def score_table(seed: int, levels: int) -> torch.Tensor:
    """Log-probabilities that depend on the path's last token and depth: [levels, VOCAB, VOCAB]."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(levels, VOCAB, VOCAB, generator=generator) * 2
    if levels % 2 == 0:
        logits = logits.round()  # many ties
    return torch.log_softmax(logits, dim=-1)


def grow(shape: DraftShape, table: torch.Tensor) -> Draft:
    def advance(frontier: TreeLevel) -> BestTokens:
        return BestTokens.of(table[frontier.step + 1][frontier.tokens], shape.topk)

    level = FirstLevel.of(shape.topk, table.device)
    roots = BestTokens.of(table[0, 0][None], shape.topk)
    return grow_tree(TORCH, shape, level, roots, advance)


def paths_of(draft: Draft) -> list[tuple[int, ...]]:
    """The tokens on the way to every node but the root, node by node."""
    assert draft.tree is not None
    tokens, parents = [None, *draft.tokens[0].tolist()], draft.tree.parents[0].tolist()
    paths: list[tuple[int, ...]] = [()]
    for node in range(1, len(parents)):
        assert parents[node] < node
        paths.append((*paths[parents[node]], tokens[node]))
    return paths[1:]


def path_score(table: torch.Tensor, path: tuple[int, ...]) -> float:
    total = torch.zeros((), dtype=torch.float32)
    for depth, token in enumerate(path):
        total = total + table[depth, path[depth - 1] if depth else 0, token]
    return float(total)


def slow_tree(shape: DraftShape, table: torch.Tensor) -> list[tuple[int, ...]]:
    """Expand the k best of each level, keep all candidates, take the best; ties to the older."""

    def children(path: tuple[int, ...]) -> list[int]:
        row = table[len(path), path[-1] if path else 0]
        return torch.topk(row, shape.topk).indices.tolist()

    def score(path: tuple[int, ...]) -> float:
        return path_score(table, path)

    pool: list[tuple[int, ...]] = []
    frontier: list[tuple[int, ...]] = [()]
    for _ in range(shape.num_steps):
        level = [(*path, token) for path in frontier for token in children(path)]
        pool += level
        ranked = sorted(range(len(level)), key=lambda i: (-score(level[i]), i))
        frontier = [level[i] for i in ranked[: shape.topk]]
    ranked = sorted(range(len(pool)), key=lambda i: (-score(pool[i]), i))
    return [pool[i] for i in ranked[: shape.num_tokens - 1]]


@settings(max_examples=120, deadline=None, derandomize=True)
@given(data=st.data())
def test_it_equals_the_slow_tree(data: st.DataObject) -> None:
    topk, steps = data.draw(st.integers(2, 8)), data.draw(st.integers(1, 6))
    width = data.draw(st.integers(2, min(max_tree_tokens(topk, steps), 60)))
    shape = DraftShape(steps, topk, width)
    table = score_table(data.draw(st.integers(0, 10_000)), steps)
    assert paths_of(grow(shape, table)) == slow_tree(shape, table)


@pytest.mark.parametrize("steps", [1, 3, 4])
def test_nodes_are_scored_where_not_all_are_verified(steps: int) -> None:
    table, shape = score_table(7, steps), DraftShape.of(steps, 4)
    draft = grow(replace(shape, verify_tokens=2), table)
    assert draft.scores is not None
    assert draft.scores[0].tolist() == [path_score(table, path) for path in paths_of(draft)]
    whole = grow(shape, table)
    assert whole.scores is None
    assert torch.equal(whole.tokens, draft.tokens)


@pytest.mark.parametrize("topk", [2, 5])
def test_certainty_and_nan_leave_no_orphans(topk: int) -> None:
    """Scores of exactly 0 tie parent and child; NaN and -inf must not tear the tree."""
    shape = DraftShape(4, topk, 12)
    table = torch.full((4, VOCAB, VOCAB), -math.inf)
    table[..., 3] = 0.0
    table[2, :, 7] = math.nan
    draft = grow(shape, table)
    assert draft.tree is not None
    depths = draft.tree.depths[0].tolist()
    parents = draft.tree.parents[0].tolist()
    assert all(depths[node] == depths[parents[node]] + 1 for node in range(1, 12))
    assert (3, 3, 3, 3) in paths_of(draft)


def test_siblings_differ_and_any_number_of_first_nodes_is_the_best_tree_of_its_size() -> None:
    for seed in range(30):
        table = score_table(seed, 4)
        paths = paths_of(grow(DraftShape(4, 4, 30), table))
        assert len(set(paths)) == len(paths)
        for count in (2, 5, 13):
            assert paths_of(grow(DraftShape(4, 4, count), table)) == paths[: count - 1]


def test_ancestry_marks_exactly_the_way_to_the_root() -> None:
    draft = grow(DraftShape(5, 3, 25), score_table(1, 5))
    assert draft.tree is not None
    parents, ancestry = draft.tree.parents[0].tolist(), draft.tree.ancestry[0]
    for node, other in itertools.product(range(25), range(25)):
        way, at = {node}, node
        while at != 0:
            at = parents[at]
            way.add(at)
        assert bool(ancestry[node, other]) == (other in way)


def test_a_frontier_node_sees_its_own_ancestors_in_the_scratch() -> None:
    """The mask of a step follows parents, not indices: re-ranking must not mix branches."""
    table = score_table(5, 5)
    shape = DraftShape(5, 4, 30)
    seen: list[TreeLevel] = []

    def advance(frontier: TreeLevel) -> BestTokens:
        seen.append(frontier)
        return BestTokens.of(table[frontier.step + 1][frontier.tokens], shape.topk)

    roots = BestTokens.of(table[0, 0][None], shape.topk)
    grow_tree(TORCH, shape, FirstLevel.of(shape.topk, table.device), roots, advance)
    for step, frontier in enumerate(seen):
        for place in range(4):
            rows, at, level = set(), place, step
            while level >= 0:
                rows.add(level * 4 + at)
                at = int(seen[level].parents[-1][0, at]) if level else 0
                level -= 1
            mask = scratch_mask(frontier.parents, torch.eye(4, dtype=torch.bool)[None])
            marked = mask[0, place].nonzero().flatten().tolist()
            assert set(marked) == rows
