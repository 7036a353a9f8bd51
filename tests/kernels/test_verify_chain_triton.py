"""Accepted length of a chain: the kernel, the reference and a loop agree."""

import pytest
import torch

from specdecode_kernels import TORCH
from tests.kernels.tensors import below
from tests.kernels.trees import every_other
from tests.kernels.triton_ops import TRITON


@pytest.mark.parametrize("drafted_count", [0, 1, 3, 8, 16])
def test_it_equals_the_reference_and_a_loop(drafted_count: int, device: torch.device) -> None:
    choices = below(2, 6, drafted_count + 1, seed=drafted_count, device=device)
    drafted = below(2, 6, drafted_count, seed=99, device=device)
    drafted[0] = choices[0, :-1]
    wanted = TORCH.verify_chain(choices, drafted)
    for strided in ((choices, drafted), (every_other(choices), every_other(drafted))):
        accepted = TRITON.verify_chain(*strided)
        assert torch.equal(accepted, wanted)
    for row in range(6):
        count = 0
        while count < drafted_count and choices[row, count] == drafted[row, count]:
            count += 1
        assert accepted[row] == count
