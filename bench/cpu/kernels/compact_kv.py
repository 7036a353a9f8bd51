"""Keys and values of the accepted path, all layers of an 8B model."""

import sys
from collections.abc import Iterator

import torch

from bench.cpu.kernels.both_ways import Case, run

LAYERS, HEADS, DIM, PAGE, PAGES = 32, 8, 128, 16, 8


def cases(device: torch.device) -> Iterator[Case]:
    """Five rows of every request move."""
    for batch in (1, 16, 64):
        shape = (LAYERS, batch * PAGES * PAGE, HEADS, DIM)
        k = torch.zeros(shape, dtype=torch.bfloat16, device=device)
        v = torch.zeros_like(k)
        table = torch.arange(batch * PAGES, device=device).view(batch, PAGES)
        slots = torch.arange(batch, device=device)
        lengths = torch.full_like(slots, 61)
        path = torch.tensor([0, 2, 5, 9, 14, 20], device=device).expand(batch, 6).contiguous()
        row = 2 * LAYERS * HEADS * DIM * k.itemsize
        yield Case(
            f"batch={batch}",
            2 * batch * 5 * row,
            lambda ops, k=k, v=v, t=table, s=slots, n=lengths, p=path: ops.compact_kv(
                k, v, t, s, n, p, PAGE
            ),
        )


if __name__ == "__main__":
    sys.exit(run("compact_kv", cases))
