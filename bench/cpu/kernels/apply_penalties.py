"""Penalties and bias over whole vocabularies."""

import sys
from collections.abc import Iterator

import torch

from bench.cpu.kernels.both_ways import Case, run
from specdecode_kernels import DraftedNodes, PenaltyParamsBatch

VOCAB, NODES = 128256, 4


def cases(device: torch.device) -> Iterator[Case]:
    """Chains of three after the bonus token; every request has all penalties."""
    for batch in (1, 16, 64):
        logits = torch.randn(batch, NODES, VOCAB, device=device)
        rows = PenaltyParamsBatch(
            counts=torch.ones(batch, VOCAB, device=device),
            in_prompt=torch.ones(batch, VOCAB, dtype=torch.bool, device=device),
            bias=torch.zeros(batch, VOCAB, device=device),
            states=torch.arange(batch, device=device),
            numbers=torch.tensor([[1.1, 0.1, 0.1]] * batch, dtype=torch.float64, device=device),
        )
        drafted = DraftedNodes(
            torch.ones(batch, NODES - 1, dtype=torch.int64, device=device), None, NODES - 1
        )
        yield Case(
            f"batch={batch}",
            2 * logits.nbytes + 9 * batch * VOCAB,
            lambda ops, x=logits, r=rows, d=drafted: ops.apply_penalties(x, r, d),
        )


if __name__ == "__main__":
    sys.exit(run("apply_penalties", cases))
