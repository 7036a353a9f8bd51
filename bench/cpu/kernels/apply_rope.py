"""The rotation of q and k, as parts of one projection."""

import sys
from collections.abc import Iterator

import torch

from bench.cpu.kernels.both_ways import Case, run


def cases(device: torch.device) -> Iterator[Case]:
    """Rows of one small round up to a prefill chunk, heads of an 8B and a 70B model."""
    for rows in (1, 16, 256, 4096):
        for q_heads in (32, 64):
            qkv = torch.randn(rows, q_heads + 16, 128, device=device, dtype=torch.bfloat16)
            q, k, _ = torch.split(qkv, [q_heads, 8, 8], dim=1)
            angles = torch.randn(rows, 64, device=device)
            cos, sin = angles.cos(), angles.sin()
            moved = 2 * (q.numel() + k.numel()) * q.itemsize + 2 * cos.nbytes
            yield Case(
                f"rows={rows} heads={q_heads}+8",
                moved,
                lambda ops, q=q, k=k, cos=cos, sin=sin: ops.apply_rope(q, k, cos, sin),
            )


if __name__ == "__main__":
    sys.exit(run("apply_rope", cases))
