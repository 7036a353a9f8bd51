"""Accepted path in a tree: the kernel, the reference and a walk on paper agree."""

import random

import pytest
import torch

from specdecode_kernels import TORCH
from tests.kernels.trees import distinct_siblings, every_other, random_parents
from tests.kernels.triton_ops import TRITON


def walk_on_paper(parents: list[int], tokens: list[int], choices: list[int]) -> list[int]:
    path = [0]
    while True:
        here, wanted = path[-1], choices[path[-1]]
        children = [n for n in range(1, len(parents)) if parents[n] == here]
        matching = [n for n in children if tokens[n - 1] == wanted]
        if not matching:
            return path
        path.append(matching[0])


@pytest.mark.parametrize("seed", range(12))
def test_it_equals_the_reference_and_the_walk_on_paper(seed: int, device: torch.device) -> None:
    rng = random.Random(seed)
    nodes, depth = rng.choice([1, 2, 7, 16, 33]), rng.randint(1, 6)
    trees = [random_parents(rng, nodes, depth) for _ in range(4)]
    drafts = [distinct_siblings(rng, parents, 2) for parents in trees]
    # Often the token of some child, so that walks get somewhere.
    picks = []
    for tree, tokens in zip(trees, drafts, strict=True):
        behind = [[tokens[n - 1] for n in range(1, nodes) if tree[n] == m] for m in range(nodes)]
        picks.append([rng.choice([*tokens_here, *tokens_here, 0]) for tokens_here in behind])
    choices, parents = torch.tensor(picks, device=device), torch.tensor(trees, device=device)
    drafted = torch.tensor(drafts, device=device, dtype=torch.int64).view(4, nodes - 1)
    length = min(depth, nodes - 1) + 1
    wanted = TORCH.verify_tree(choices, drafted, parents, length)
    for stride in (lambda x: x, every_other):
        strided = stride(choices), stride(drafted), stride(parents)
        result = TRITON.verify_tree(*strided, length)
        assert all(torch.equal(x, truth) for x, truth in zip(result, wanted, strict=True))
    path, accepted, bonus = result
    for row in range(4):
        steps = walk_on_paper(trees[row], drafts[row], picks[row])
        assert accepted[row] == len(steps) - 1
        assert path[row].tolist() == steps + [steps[-1]] * (length - len(steps))
        assert bonus[row] == picks[row][steps[-1]]
