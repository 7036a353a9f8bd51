"""The rotation of q and k and the store of k and v, in one launch, next to the two ops."""

import sys
from collections.abc import Iterator

import torch

from bench.cpu.kernels.both_ways import Case, run
from specdecode_kernels import FLOAT8, LayerKV

POOL_ROWS, Q_HEADS, HEADS, DIM = 1 << 16, 32, 8, 128


def cases(device: torch.device) -> Iterator[Case]:
    """Rows of one small step up to a prefill chunk, to random slots."""
    for pool_dtype in (torch.bfloat16, FLOAT8):
        k_pool, v_pool = torch.zeros(2, POOL_ROWS, HEADS, DIM, device=device).to(pool_dtype)
        kv = LayerKV(k_pool, v_pool)
        for rows in (1, 8, 64, 512, 4096):
            qkv = torch.randn(rows, Q_HEADS + 2 * HEADS, DIM, device=device).to(torch.bfloat16)
            q, k, v = torch.split(qkv, [Q_HEADS, HEADS, HEADS], dim=1)
            angles = torch.randn(rows, DIM // 2, device=device)
            rest = (q, k, v, angles.cos(), angles.sin())
            to = torch.randperm(POOL_ROWS, device=device)[:rows]
            moved = 2 * (q.numel() + k.numel()) * q.itemsize + 2 * angles.nbytes
            yield Case(
                f"{str(pool_dtype).removeprefix('torch.')} rows={rows}",
                moved + v.numel() * v.itemsize + 2 * k.numel() * pool_dtype.itemsize,
                lambda ops, kv=kv, to=to, rest=rest: ops.rope_and_store_kv(kv, to, *rest),
            )


if __name__ == "__main__":
    sys.exit(run("rope_and_store_kv", cases))
