"""The gated delta rule of one layer of Qwen3.5-9B: decode, verified chains and trees, a prompt."""

import sys
from collections.abc import Iterator

import torch

from bench.cpu.kernels.both_ways import Case, run
from specdecode_kernels import DeltaShape
from specdecode_kernels.testing.gated_delta import DeltaForm, ancestry_of, delta_rows

SHAPE = DeltaShape(16, 32, 128, 128, 4)
TREE = [0, 0, 0, 0, 1, 1, 2, 4]
MATRICES = SHAPE.v_heads * SHAPE.k_dim * SHAPE.v_dim * 4
"""Bytes of a request's state."""


def cases(device: torch.device) -> Iterator[Case]:
    """A state is read and written once, whatever the number of rows."""
    kinds = [("decode", 1, 1), ("chain", 8, 8), ("tree", 8, 8), ("prompt", 512, 1)]
    for batch in (1, 16, 64):
        for kind, count, nodes in kinds[: 4 if batch == 1 else 3]:
            form = DeltaForm(SHAPE, torch.bfloat16, layers=1, slots=batch, nodes=nodes)
            marks = ancestry_of([TREE] * batch, device) if kind == "tree" else None
            chunks = batch if kind == "prompt" else 0
            rows = delta_rows(range(batch), [count] * batch, chunks, marks, device)
            inputs = form.draw_inputs(batch * count, 0, device)
            given = *inputs, form.draw_params(1, device), form.draw_state(2, device), 0, rows
            moved = 2 * batch * MATRICES + batch * count * 2 * (SHAPE.channels + 4096)
            yield Case(f"{kind}-batch={batch}", moved, lambda ops, g=given: ops.gated_delta(*g))


if __name__ == "__main__":
    sys.exit(run("gated_delta", cases))
