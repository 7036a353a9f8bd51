"""The experts of a mixture: of a decode step, of a verify and of a prefill chunk."""

import sys
from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor

from bench.cpu.kernels.both_ways import Case, run
from specdecode_kernels import (
    MXFP4,
    NVFP4,
    ExpertRouting,
    ExpertWeights,
    GatedActivation,
    Precision,
    QuantizedTensor,
    quantize,
)

SIZES = {
    "Qwen3-30B-A3B": (128, 8, 2048, 768),
    "gpt-oss-20b": (32, 4, 2880, 2880),
}
"""Experts, those of a row, hidden size and inner size of published models."""


FORMS = {"": None, "mxfp4 ": MXFP4, "nvfp4 ": NVFP4}
"""Of the weights; the first has the type of the rows."""


def cases(device: torch.device) -> Iterator[Case]:
    """Rows of every size; bytes are those of the experts that have rows."""
    for (name, sizes), (form, precision) in product(SIZES.items(), FORMS.items()):
        experts, top_k, hidden, inner = sizes
        gate_up, down = (
            _draw(shape, precision, device)
            for shape in ((experts, 2 * inner, hidden), (experts, hidden, inner))
        )
        weights = ExpertWeights(gate_up, down)
        each = (_bytes(gate_up) + _bytes(down)) // experts
        for rows in (1, 8, 64, 512, 4096):
            x = torch.randn(rows, hidden, device=device, dtype=torch.bfloat16)
            scores = torch.rand(rows, experts, device=device)
            ids = scores.topk(top_k, dim=1).indices.int()
            routing = ExpertRouting(ids, torch.full(ids.shape, 1 / top_k, device=device))
            yield Case(
                f"{form}{name} rows={rows}",
                len(torch.unique(ids)) * each + 2 * x.nbytes,
                lambda ops, x=x, routing=routing, weights=weights: ops.experts(
                    x, routing, weights, GatedActivation("silu")
                ),
            )


def _draw(
    shape: tuple[int, ...], precision: Precision | None, device: torch.device
) -> Tensor | QuantizedTensor:
    plain = torch.randn(shape, device=device, dtype=torch.bfloat16) * shape[-1] ** -0.5
    return plain if precision is None else quantize(plain, precision)


def _bytes(weight: Tensor | QuantizedTensor) -> int:
    if isinstance(weight, Tensor):
        return weight.nbytes
    return weight.values.nbytes + weight.scales.nbytes


if __name__ == "__main__":
    sys.exit(run("experts", cases))
