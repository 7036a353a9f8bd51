"""Linear maps with weights of integers: of a decode step, of a verify and of a prefill chunk."""

import sys
from collections.abc import Iterator

import torch

from bench.cpu.kernels.both_ways import Case, run
from specdecode_kernels import INT4, INT8, quantize

SIZES = ((6144, 4096), (28672, 4096), (4096, 14336))
"""Outputs and inputs of an 8B model: attention's inputs, the gate and its other half, and down."""
PRECISIONS = {"int8": INT8, "int4": INT4}


def cases(device: torch.device) -> Iterator[Case]:
    """Rows of every size; bytes are those of the integers with their scales, and of the rows."""
    for outputs, inputs in SIZES:
        plain = torch.randn(outputs, inputs, device=device, dtype=torch.bfloat16)
        for name, precision in PRECISIONS.items():
            weight = quantize(plain, precision)
            for rows in (1, 8, 64, 512, 4096):
                x = torch.randn(rows, inputs, device=device, dtype=torch.bfloat16)
                moved = weight.values.nbytes + weight.scales.nbytes + x.nbytes + 2 * rows * outputs
                yield Case(
                    f"{name} {outputs}x{inputs} rows={rows}",
                    moved,
                    lambda ops, x=x, weight=weight: ops.linear(x, weight, None),
                )


if __name__ == "__main__":
    sys.exit(run("linear", cases))
