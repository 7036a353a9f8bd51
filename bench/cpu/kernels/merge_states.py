"""Two attentions of the same queries over different rows, merged."""

import sys
from collections.abc import Iterator

import torch

from bench.cpu.kernels.both_ways import Case, run

HEADS, DIM = 32, 128


def cases(device: torch.device) -> Iterator[Case]:
    """Rows of one small round up to a large one."""
    for rows in (1, 8, 64, 512):
        out_a, out_b = torch.randn(2, rows, HEADS, DIM, device=device).to(torch.bfloat16)
        lse_a, lse_b = torch.randn(2, rows, HEADS, device=device)
        state = (out_a, lse_a, out_b, lse_b)
        yield Case(
            f"rows={rows}",
            3 * (out_a.nbytes + lse_a.nbytes),
            lambda ops, state=state: ops.merge_states(*state),
        )


if __name__ == "__main__":
    sys.exit(run("merge_states", cases))
