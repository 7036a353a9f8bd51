"""The experts of a mixture: of a decode step, of a verify and of a prefill chunk."""

import sys
from collections.abc import Iterator

import torch

from bench.cpu.kernels.both_ways import Case, run
from specdecode_kernels import ExpertRouting, ExpertWeights, GatedActivation

SIZES = {
    "Qwen3-30B-A3B": (128, 8, 2048, 768),
    "gpt-oss-20b": (32, 4, 2880, 2880),
}
"""Experts, those of a row, hidden size and inner size of published models."""


def cases(device: torch.device) -> Iterator[Case]:
    """Rows of every size; bytes are those of the experts that have rows."""
    for name, (experts, top_k, hidden, inner) in SIZES.items():
        gate_up, down = (
            torch.randn(shape, device=device, dtype=torch.bfloat16) * shape[-1] ** -0.5
            for shape in ((experts, 2 * inner, hidden), (experts, hidden, inner))
        )
        weights = ExpertWeights(gate_up, down)
        for rows in (1, 8, 64, 512, 4096):
            x = torch.randn(rows, hidden, device=device, dtype=torch.bfloat16)
            scores = torch.rand(rows, experts, device=device)
            ids = scores.topk(top_k, dim=1).indices.int()
            routing = ExpertRouting(ids, torch.full(ids.shape, 1 / top_k, device=device))
            read = len(torch.unique(ids)) * (gate_up[0].nbytes + down[0].nbytes)
            yield Case(
                f"{name} rows={rows}",
                read + 2 * x.nbytes,
                lambda ops, x=x, routing=routing, weights=weights: ops.experts(
                    x, routing, weights, GatedActivation("silu")
                ),
            )


if __name__ == "__main__":
    sys.exit(run("experts", cases))
