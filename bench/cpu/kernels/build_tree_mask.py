"""Depths and ancestry of draft trees."""

import sys
from collections.abc import Iterator

import torch

from bench.cpu.kernels.both_ways import Case, run


def cases(device: torch.device) -> Iterator[Case]:
    """Trees in which every node has two children, small up to the largest allowed."""
    for batch in (1, 16, 128):
        for nodes, depth in ((21, 5), (64, 7), (256, 16)):
            parents = ((torch.arange(nodes, device=device) - 1) // 2).clamp(min=0)
            parents = parents.expand(batch, nodes).contiguous()
            yield Case(
                f"batch={batch} nodes={nodes}",
                2 * parents.nbytes + batch * nodes * nodes,
                lambda ops, p=parents, d=depth: ops.build_tree_mask(p, d),
            )


if __name__ == "__main__":
    sys.exit(run("build_tree_mask", cases))
