"""Residual addition and norm of a step's rows."""

import sys
from collections.abc import Iterator

import torch

from bench.cpu.kernels.both_ways import Case, run


def cases(device: torch.device) -> Iterator[Case]:
    """Rows of one small round up to a prefill chunk, at the width of an 8B and a 70B model."""
    for rows in (1, 16, 256, 4096):
        for dim in (4096, 8192):
            x = torch.randn(rows, dim, device=device, dtype=torch.bfloat16)
            weight = torch.randn(dim, device=device, dtype=torch.bfloat16)
            yield Case(
                f"rows={rows} dim={dim}",
                4 * x.nbytes,
                lambda ops, x=x, weight=weight: ops.add_rms_norm(x, x, weight, 1e-5),
            )


if __name__ == "__main__":
    sys.exit(run("add_rms_norm", cases))
