"""Rows of the accepted path: of features, and of a whole vocabulary's logits."""

import sys
from collections.abc import Iterator

import torch

from bench.cpu.kernels.both_ways import Case, run


def cases(device: torch.device) -> Iterator[Case]:
    """Six of 32 nodes."""
    for batch in (1, 16, 64):
        for width, dtype in ((1, torch.int64), (3 * 4096, torch.bfloat16), (128256, torch.float32)):
            values = torch.ones(batch, 32, width, dtype=dtype, device=device)
            path = torch.arange(0, 12, 2, device=device).expand(batch, 6).contiguous()
            yield Case(
                f"batch={batch} width={width}",
                2 * batch * 6 * width * values.itemsize,
                lambda ops, v=values, p=path: ops.gather_accepted(v, p),
            )


if __name__ == "__main__":
    sys.exit(run("gather_accepted", cases))
