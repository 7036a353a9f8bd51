"""`python -m kernels.store_kv`: writing new keys and values beside torch's two index copies."""

import argparse
import json
import sys

import torch

from kernels.timing import demand_gpu, machine, time_us
from specdecode_kernels import AttentionBackend, choose_backend, store_kv
from specdecode_kernels.reference.pool import FLOAT8


def measure(rows: int, pool_dtype: torch.dtype, backend: AttentionBackend) -> dict[str, object]:
    """Time both on rows of 8 heads of 128, at random places of the pools."""
    pools = [torch.zeros(1 << 16, 8, 128, device="cuda").to(pool_dtype) for _ in range(2)]
    k, v = torch.randn(2, rows, 8, 128, device="cuda").to(torch.bfloat16)
    to = torch.randperm(1 << 16, device="cuda")[:rows]
    ours_us = time_us(lambda: store_kv(*pools, to, k, v, backend=backend))
    torch_us = time_us(lambda: store_kv(*pools, to, k, v))
    times = {"triton_us": round(ours_us, 2), "torch_us": round(torch_us, 2)}
    return {"rows": rows, "pool": str(pool_dtype), **times}


def main() -> int:
    """Print the machine, then a line per number of rows and type of pool."""
    argparse.ArgumentParser(prog="kernels.store_kv").parse_args()
    device = demand_gpu()
    print(json.dumps(machine()), flush=True)
    backend, _ = choose_backend("triton", device, torch.bfloat16, 128)
    for pool_dtype in (torch.bfloat16, FLOAT8):
        for rows in (1, 8, 64, 512, 4096):
            print(json.dumps(measure(rows, pool_dtype, backend)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
