"""Linear maps with quantized weights: of a decode step, of a verify and of a prefill chunk."""

import sys
from collections.abc import Iterator
from functools import cache
from itertools import product

import torch

from bench.cpu.kernels.both_ways import Case, run
from specdecode_kernels import INT4, INT8, MXFP4, NVFP4, QuantizedTensor, quantize

SIZES = ((6144, 4096), (28672, 4096), (4096, 14336))
"""Outputs and inputs of an 8B model: attention's inputs, the gate and its other half, and down."""
PRECISIONS = {"int8": INT8, "int4": INT4, "mxfp4": MXFP4, "nvfp4": NVFP4}


def cases(device: torch.device) -> Iterator[Case]:
    """Few rows first; bytes are those of the numbers with their scales, and of the rows."""

    @cache
    def weight_of(outputs: int, inputs: int, name: str) -> QuantizedTensor:
        plain = torch.randn(outputs, inputs, device=device, dtype=torch.bfloat16)
        return quantize(plain, PRECISIONS[name])

    for rows, (outputs, inputs), name in product((1, 8, 64, 512, 4096), SIZES, PRECISIONS):
        weight = weight_of(outputs, inputs, name)
        x = torch.randn(rows, inputs, device=device, dtype=torch.bfloat16)
        moved = weight.values.nbytes + weight.scales.nbytes + x.nbytes + 2 * rows * outputs
        yield Case(
            f"{name} {outputs}x{inputs} rows={rows}",
            moved,
            lambda ops, x=x, weight=weight: ops.linear(x, weight, None),
        )


if __name__ == "__main__":
    sys.exit(run("linear", cases))
