"""Accepted rows move to the front in every layer, though one's place be another's source."""

import random

import pytest
import torch

from specdecode_kernels import TORCH
from tests.kernels.tensors import normal
from tests.kernels.triton_ops import TRITON

BATCH, SLOTS, POSITIONS = 3, 5, 48


def filled(rng: random.Random, nodes: int, length: int) -> list[int]:
    """A path through `nodes` nodes, filled up with its last one."""
    steps = [0, *sorted(rng.sample(range(1, nodes), rng.randint(0, min(nodes, length) - 1)))]
    return steps + [steps[-1]] * (length - len(steps))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("page_size", "heads", "dims", "length"),
    [(1, 1, (2, 2), 1), (2, 2, (8, 3), 3), (4, 3, (10, 40), 5), (16, 5, (64, 64), 6)],
)
def test_it_equals_the_reference(
    page_size: int,
    heads: int,
    dims: tuple[int, int],
    length: int,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    rng = random.Random(page_size)
    width = -(-POSITIONS // page_size)
    pages = rng.sample(range(SLOTS * width + 1), SLOTS * width)
    table = torch.tensor(pages, device=device).view(SLOTS, width)
    rows = (SLOTS * width + 1) * page_size
    k = normal(2, rows, heads, dims[0], dtype=dtype, device=device)
    v = normal(2, rows, heads, dims[1], seed=1, dtype=dtype, device=device)
    wanted_k, wanted_v = k.clone(), v.clone()
    slots = torch.tensor(rng.sample(range(SLOTS), BATCH), device=device)
    lengths = torch.tensor([rng.randrange(30) for _ in range(BATCH)], device=device)
    path = torch.tensor([filled(rng, 16, length) for _ in range(BATCH)], device=device)
    arguments = (table, slots, lengths, path, page_size)
    TORCH.compact_kv(wanted_k, wanted_v, *arguments)
    TRITON.compact_kv(k, v, *arguments)
    assert torch.equal(k, wanted_k)
    assert torch.equal(v, wanted_v)


def test_a_path_that_overtakes_itself(device: torch.device) -> None:
    """Rows 1 and 2 are written, 2 and 3 read: read late, row 1 would hold what row 3 held."""
    k = torch.arange(8.0, device=device).view(1, 8, 1, 1).repeat(1, 1, 1, 2)
    v = -k
    table = torch.arange(2, device=device).view(1, 2)
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    TRITON.compact_kv(k, v, table, zero, zero + 1, torch.tensor([[0, 2, 3, 3]], device=device), 4)
    assert k[0, :, 0, 0].tolist() == [0, 1, 3, 4, 4, 5, 6, 7]
    assert torch.equal(v, -k)
