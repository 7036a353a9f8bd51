"""Depths and ancestry by the kernel equal the reference's, and a walk to the root."""

import random

import pytest
import torch

from specdecode_kernels import TORCH
from tests.kernels.trees import every_other, random_parents
from tests.kernels.triton_ops import TRITON


@pytest.mark.parametrize("nodes", [1, 2, 15, 16, 17, 40])
def test_it_equals_the_reference(nodes: int, device: torch.device) -> None:
    rng = random.Random(nodes)
    max_depth = rng.randint(1, 6)
    trees = [random_parents(rng, nodes, max_depth) for _ in range(3)]
    parents = torch.tensor(trees, device=device)
    wanted = TORCH.build_tree_mask(parents, max_depth)
    for strided in (parents, every_other(parents)):
        for result, truth in zip(TRITON.build_tree_mask(strided, max_depth), wanted, strict=True):
            assert torch.equal(result, truth)


def test_every_node_marks_its_way_to_the_root(device: torch.device) -> None:
    parents = random_parents(random.Random(1), 30, 5)
    depths, ancestry = TRITON.build_tree_mask(torch.tensor([parents], device=device), 5)
    for node in range(30):
        way, at = {node}, node
        while at:
            at = parents[at]
            way.add(at)
        assert set(ancestry[0, node].nonzero()[:, 0].tolist()) == way
        assert depths[0, node] == len(way) - 1
