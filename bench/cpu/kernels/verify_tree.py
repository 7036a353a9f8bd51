"""Down draft trees as far as the target agrees."""

import sys
from collections.abc import Iterator

import torch

from bench.cpu.kernels.both_ways import Case, run


def cases(device: torch.device) -> Iterator[Case]:
    """Trees in which every node has two children; the walk takes the left one to the end."""
    for batch in (1, 16, 128):
        for nodes, length in ((15, 4), (63, 6), (255, 8)):
            places = torch.arange(nodes, device=device)
            parents = ((places - 1) // 2).clamp(min=0).expand(batch, nodes).contiguous()
            drafted = (places[1:] % 2).expand(batch, nodes - 1).contiguous()
            choices = torch.ones(batch, nodes, dtype=torch.int64, device=device)
            yield Case(
                f"batch={batch} nodes={nodes}",
                2 * parents.nbytes + drafted.nbytes,
                lambda ops, c=choices, d=drafted, p=parents, n=length: ops.verify_tree(c, d, p, n),
            )


if __name__ == "__main__":
    sys.exit(run("verify_tree", cases))
