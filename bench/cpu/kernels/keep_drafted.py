"""Accepted rows folded into the states of all 24 gated delta nets of Qwen3.5-9B."""

import sys
from collections.abc import Iterator

import torch

from bench.cpu.kernels.both_ways import Case, run
from bench.cpu.kernels.gated_delta import MATRICES, SHAPE
from specdecode_kernels.testing.gated_delta import DeltaForm

LAYERS = 24


def cases(device: torch.device) -> Iterator[Case]:
    """Three of seven drafted rows were accepted, as a chain or as a path."""
    for batch in (1, 16):
        form = DeltaForm(SHAPE, torch.bfloat16, layers=LAYERS, slots=batch, nodes=8)
        params, state = form.draw_params(0, device), form.draw_state(1, device)
        state.drafted.fill_(0.5)
        state.drafted_gates.fill_(0.5)
        slots = torch.arange(batch, device=device)
        accepted = torch.full_like(slots, 3)
        tree = torch.tensor([0, 2, 4, 7], device=device).expand(batch, 4).contiguous()
        for name, path in (("chain", None), ("tree", tree)):
            yield Case(
                f"{name}-batch={batch}",
                2 * LAYERS * batch * MATRICES,
                lambda ops, p=params, s=state, at=slots, path=path, n=accepted: ops.keep_drafted(
                    p, s, at, path, n
                ),
            )


if __name__ == "__main__":
    sys.exit(run("keep_drafted", cases))
