"""New rows of keys and values into the pools, of bfloat16 and float8."""

import sys
from collections.abc import Iterator

import torch

from bench.cpu.kernels.both_ways import Case, run
from specdecode_kernels import FLOAT8, LayerKV

POOL_ROWS, HEADS, DIM = 1 << 16, 8, 128


def cases(device: torch.device) -> Iterator[Case]:
    """Rows of one small step up to a prefill chunk, to random slots."""
    for pool_dtype in (torch.bfloat16, FLOAT8):
        k_pool, v_pool = torch.zeros(2, POOL_ROWS, HEADS, DIM, device=device).to(pool_dtype)
        kv = LayerKV(k_pool, v_pool)
        for rows in (1, 8, 64, 512, 4096):
            k, v = torch.randn(2, rows, HEADS, DIM, device=device).to(torch.bfloat16)
            to = torch.randperm(POOL_ROWS, device=device)[:rows]
            yield Case(
                f"{str(pool_dtype).removeprefix('torch.')} rows={rows}",
                2 * (k.nbytes + rows * HEADS * DIM * pool_dtype.itemsize),
                lambda ops, kv=kv, to=to, k=k, v=v: ops.store_kv(kv, to, k, v),
            )


if __name__ == "__main__":
    sys.exit(run("store_kv", cases))
