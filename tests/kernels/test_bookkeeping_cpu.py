"""Ops on tokens and positions in C equal the reference and a loop over any draw."""

import random
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from specdecode_kernels import TORCH
from specdecode_kernels.testing import backend_of, checked
from tests.kernels.launched import launches
from tests.kernels.tensors import inside_wider

OPS = checked(backend_of("cpu", torch.device("cpu")))
DRAWS = 150


@pytest.fixture(autouse=True)
def counts() -> Iterator[Counter[str]]:
    with launches() as counted:
        yield counted


def laid_out(rng: random.Random, x: Tensor) -> Tensor:
    """The same numbers, side by side or apart."""
    return rng.choice((x, inside_wider(x), x.t().contiguous().t()))


@pytest.mark.parametrize("seed", range(3))
def test_verify_chain(seed: int, counts: Counter[str]) -> None:
    """Of few tokens, so that drafts agree, also after a token that does not; -1: not verified."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(DRAWS):
        batch, count, tokens = rng.randrange(6), rng.randrange(9), rng.randint(1, 4)
        choices = torch.randint(tokens, (batch, count + 1))
        drafted = torch.randint(tokens, (batch, count))
        wanted = []
        for chosen, own in zip(choices.tolist(), drafted, strict=True):
            own[rng.randint(0, count) :] = -1
            if rng.random() < 0.3:
                own[:] = torch.tensor(chosen[:-1])
            agrees = [a == b for a, b in zip(chosen, own.tolist(), strict=False)]
            wanted.append([*agrees, False].index(False))
        found = OPS.verify_chain(laid_out(rng, choices), laid_out(rng, drafted))
        assert found.tolist() == wanted
        assert torch.equal(found, TORCH.verify_chain(choices, drafted))
        assert found.dtype == torch.int64
    assert counts == {"verify_chain": DRAWS}
