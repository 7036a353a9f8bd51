"""`python -m kernels.merge_states`: merging two attentions beside the reference's torch ops."""

import argparse
import json
import sys

import torch

from kernels.timing import demand_gpu, machine, time_us
from specdecode_kernels import AttentionBackend, choose_backend, merge_states


def measure(rows: int, backend: AttentionBackend) -> dict[str, object]:
    """Time both on states of 32 heads of 128."""
    outs = torch.randn(2, rows, 32, 128, device="cuda").to(torch.bfloat16)
    lses = torch.randn(2, rows, 32, device="cuda")
    state = (outs[0], lses[0], outs[1], lses[1])
    ours_us = time_us(lambda: merge_states(*state, backend=backend))
    torch_us = time_us(lambda: merge_states(*state))
    return {"rows": rows, "triton_us": round(ours_us, 2), "torch_us": round(torch_us, 2)}


def main() -> int:
    """Print the machine, then a line per number of rows."""
    argparse.ArgumentParser(prog="kernels.merge_states").parse_args()
    device = demand_gpu()
    print(json.dumps(machine()), flush=True)
    backend, _ = choose_backend("triton", device, torch.bfloat16, 128)
    for rows in (1, 8, 64, 512):
        print(json.dumps(measure(rows, backend)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
