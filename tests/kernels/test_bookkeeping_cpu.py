"""Ops on tokens and positions in C equal the reference and a loop over any draw."""

import random
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from specdecode_kernels import TORCH, RowSpec
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


@pytest.mark.parametrize("seed", range(3))
def test_lay_out_rows(seed: int, counts: Counter[str]) -> None:
    """Of requests in any order, some of them twice, as padding is; some rows at the lowest."""
    rng = random.Random(seed)
    for _ in range(DRAWS):
        requests, page_size, columns = rng.randint(1, 7), rng.choice((1, 2, 16)), rng.randint(1, 6)
        width = columns + rng.randrange(4)
        pages = torch.tensor([rng.sample(range(99), width) for _ in range(requests)])
        batch, count = rng.randrange(6), rng.randint(0, min(5, width * page_size))
        req_indices = [rng.randrange(requests) for _ in range(batch)]
        start = rng.randint(-4, 0) if rng.random() < 0.7 else 0
        lengths = [rng.randint(-start, width * page_size - count - start) for _ in range(batch)]
        lowest = [rng.randrange(width * page_size) for _ in range(requests)]
        offsets = None if count == 1 else torch.arange(count)
        given = None if rng.random() < 0.4 else torch.tensor(lowest)
        indices, known = torch.tensor([req_indices, lengths], dtype=torch.int64)
        spec = RowSpec(pages, page_size, columns, indices, known, start, offsets, given)
        found = OPS.lay_out_rows(spec)
        for own, reference in zip(found, TORCH.lay_out_rows(spec), strict=True):
            assert own.is_contiguous()
            assert torch.equal(own, reference)
        wanted = []
        for request, length in zip(req_indices, lengths, strict=True):
            for place in range(count):
                position = length + start + place
                position = position if given is None else max(position, lowest[request])
                slot = int(pages[request, position // page_size]) * page_size + position % page_size
                wanted.append((request, position, slot, position + 1))
        assert list(zip(*(own.tolist() for own in found[:4]), strict=True)) == wanted
        assert torch.equal(found.page_table, pages[req_indices, :columns])
    assert counts == {"lay_out_rows": DRAWS}


@pytest.mark.parametrize("seed", range(3))
def test_append_tokens(seed: int, counts: Counter[str]) -> None:
    """To requests in any order; all tokens are written, and some of them counted."""
    rng = random.Random(seed)
    for _ in range(DRAWS):
        requests, width, first = rng.randint(1, 7), rng.randint(6, 12), rng.randrange(2)
        batch, count = rng.randint(0, requests), rng.randint(0, 4)
        req_indices = rng.sample(range(requests), batch)
        known = [rng.randint(0, width - count - first) for _ in range(requests)]
        accepted = [rng.randint(0, max(count - 1, 0)) for _ in range(batch)]
        sequences = torch.randint(50, (requests, width))
        tokens = torch.randint(50, (batch, count))
        wanted, wanted_lengths = sequences.tolist(), list(known)
        for request, own, more in zip(req_indices, tokens.tolist(), accepted, strict=True):
            start = known[request] + first
            wanted[request][start : start + count] = own
            wanted_lengths[request] += more + 1
        indices = torch.tensor(req_indices, dtype=torch.int64)
        for ops in (OPS, TORCH):
            rows, lengths = sequences.clone(), torch.tensor(known)
            places = indices, lengths[indices], torch.arange(first, first + count)
            new = laid_out(rng, tokens), torch.tensor(accepted, dtype=torch.int64)
            ops.append_tokens(rows, lengths, *places, *new)
            assert rows.tolist() == wanted
            assert lengths.tolist() == wanted_lengths
    assert counts == {"append_tokens": DRAWS}
