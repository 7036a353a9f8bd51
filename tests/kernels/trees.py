"""Random draft trees for tests of kernels."""

import random

import torch
from torch import Tensor


def random_parents(rng: random.Random, nodes: int, max_depth: int) -> list[int]:
    """Parents of nodes in breadth-first order; the root's is itself."""
    depths = [0]
    for _ in range(nodes - 1):
        depths.append(rng.randint(1, min(max_depth, max(depths) + 1)))
    depths.sort()
    parents = [0]
    for node in range(1, nodes):
        parents.append(rng.choice([n for n in range(node) if depths[n] == depths[node] - 1]))
    return parents


def distinct_siblings(rng: random.Random, parents: list[int], tokens: int) -> list[int]:
    """Tokens of the nodes but the root, in which siblings differ as long as there are enough."""
    chosen: list[int] = []
    for node in range(1, len(parents)):
        taken = {chosen[n - 1] for n in range(1, node) if parents[n] == parents[node]}
        chosen.append(rng.choice([t for t in range(tokens + len(parents)) if t not in taken]))
    return chosen


def every_other(x: Tensor) -> Tensor:
    """The same integers [B, n] with strides of 2 * n + 2 and 2."""
    wide = torch.full((x.shape[0], 2 * x.shape[1] + 2), -7, dtype=x.dtype, device=x.device)
    view = wide[:, 1 : 1 + 2 * x.shape[1] : 2]
    view.copy_(x)
    return view
