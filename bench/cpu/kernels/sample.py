"""Logits to tokens: greedy, with noise, and with filters."""

import sys
from collections.abc import Iterator

import torch

from bench.cpu.kernels.both_ways import Case, run
from specdecode_kernels import SamplingParamsBatch

VOCAB = 128256


def cases(device: torch.device) -> Iterator[Case]:
    """One node (plain decoding) and four (a chain of three), small and large batches."""
    for batch in (1, 16, 64):
        for nodes in (1, 4):
            logits = torch.randn(batch, nodes, VOCAB, device=device) * 3
            positions = torch.zeros(batch, nodes, dtype=torch.int64, device=device)
            ways = {"greedy": None, "noise": (0, 1.0), "top_k": (50, 1.0), "top_p": (0, 0.9)}
            for name, way in ways.items():
                rows = None if way is None else _rows(batch, *way, device)
                yield Case(
                    f"{name} batch={batch} nodes={nodes}",
                    logits.nbytes,
                    lambda ops, x=logits, r=rows, p=positions: ops.sample(x, r, p, None),
                )


def _rows(batch: int, top_k: int, top_p: float, device: torch.device) -> SamplingParamsBatch:
    ones = torch.ones(batch, dtype=torch.float64, device=device)
    return SamplingParamsBatch(
        temperature=ones,
        top_k=(ones * top_k).long(),
        top_p=ones * top_p,
        min_p=ones * 0,
        seeds=torch.arange(batch, device=device),
        is_filtered=top_k > 0 or top_p < 1,
        has_top_k_and_top_p=top_k > 0 and top_p < 1,
    )


if __name__ == "__main__":
    sys.exit(run("sample", cases))
