"""New rows of keys and values into the pools, of bfloat16 and float8."""

import sys
from collections.abc import Iterator

import torch

from kernels.both_ways import Backends, Case, run
from specdecode_kernels import store_kv
from specdecode_kernels.reference.pool import FLOAT8

POOL_ROWS, HEADS, DIM = 1 << 16, 8, 128


def cases(device: torch.device) -> Iterator[Case]:
    """Rows of one small round up to a prefill chunk, to random places."""
    for pool_dtype in (torch.bfloat16, FLOAT8):
        backends = Backends(device, DIM, pool_dtype)
        k_pool, v_pool = torch.zeros(2, POOL_ROWS, HEADS, DIM, device=device).to(pool_dtype)
        for rows in (1, 8, 64, 512, 4096):
            k, v = torch.randn(2, rows, HEADS, DIM, device=device).to(torch.bfloat16)
            to = torch.randperm(POOL_ROWS, device=device)[:rows]
            yield Case(
                f"{str(pool_dtype).removeprefix('torch.')} rows={rows}",
                2 * (k.nbytes + rows * HEADS * DIM * pool_dtype.itemsize),
                lambda k_pool=k_pool, v_pool=v_pool, to=to, k=k, v=v, by=backends: store_kv(
                    k_pool, v_pool, to, k, v, backend=by.for_(k)
                ),
            )


if __name__ == "__main__":
    sys.exit(run("store_kv", cases))
