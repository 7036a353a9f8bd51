"""How far chains agree with the target."""

import sys
from collections.abc import Iterator

import torch

from bench.cpu.kernels.both_ways import Case, run


def cases(device: torch.device) -> Iterator[Case]:
    """Chains of usual depth that agree all the way."""
    for batch in (1, 16, 128):
        for steps in (3, 7):
            choices = torch.zeros(batch, steps + 1, dtype=torch.int64, device=device)
            drafted = choices[:, 1:].contiguous()
            yield Case(
                f"batch={batch} steps={steps}",
                choices.nbytes + drafted.nbytes,
                lambda ops, c=choices, d=drafted: ops.verify_chain(c, d),
            )


if __name__ == "__main__":
    sys.exit(run("verify_chain", cases))
