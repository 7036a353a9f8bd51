"""The best candidates of draft trees."""

import sys
from collections.abc import Iterator

import torch

from bench.cpu.kernels.both_ways import Case, run


def cases(device: torch.device) -> Iterator[Case]:
    """Usual trees and the widest that the resource allows; parents are the level before's first."""
    for batch in (1, 16, 128):
        for topk, steps, count in ((4, 5, 20), (8, 5, 63), (16, 16, 255)):
            width = topk + (steps - 1) * topk * topk
            scores = -torch.arange(width, device=device).expand(batch, width) / 64.0
            tokens = torch.randint(32000, (batch, width), device=device)
            parents = (torch.arange(width, device=device) - topk) // topk
            parents = parents.clamp(min=-1).expand(batch, width).contiguous()
            yield Case(
                f"batch={batch} topk={topk} steps={steps} nodes={count + 1}",
                scores.nbytes + tokens.nbytes + parents.nbytes,
                lambda ops, s=scores, t=tokens, p=parents, n=count: ops.select_tree_nodes(
                    s, t, p, n
                ),
            )


if __name__ == "__main__":
    sys.exit(run("select_tree_nodes", cases))
