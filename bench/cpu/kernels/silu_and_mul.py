"""The gate of the feed-forward block, both halves in one projection."""

import sys
from collections.abc import Iterator

import torch

from bench.cpu.kernels.both_ways import Case, run


def cases(device: torch.device) -> Iterator[Case]:
    """Rows of one small round up to a prefill chunk, at the width of an 8B and a 70B model."""
    for rows in (1, 16, 256, 4096):
        for dim in (14336, 28672):
            both = torch.randn(rows, 2 * dim, device=device, dtype=torch.bfloat16)
            gate, up = both.chunk(2, dim=-1)
            yield Case(
                f"rows={rows} dim={dim}",
                both.nbytes + both.nbytes // 2,
                lambda ops, gate=gate, up=up: ops.silu_and_mul(gate, up),
            )


if __name__ == "__main__":
    sys.exit(run("silu_and_mul", cases))
