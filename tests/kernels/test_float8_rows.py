"""Rows of a float8 KV cache are moved and read as the bits that they are."""

import pytest
import torch

from specdecode_kernels import FLOAT8, TORCH, KvScale, LayerKV
from specdecode_kernels.choice import Kernels
from specdecode_kernels.testing import backend_of
from tests.kernels.tensors import normal


@pytest.mark.parametrize("way", ["torch", "triton"])
def test_the_accepted_path_moves_to_the_bit(way: Kernels, device: torch.device) -> None:
    k, v = (normal(2, 32, 2, 8, seed=seed, device=device).to(FLOAT8) for seed in (0, 1))
    before = [pool.view(torch.uint8).clone() for pool in (k, v)]
    table = torch.arange(8, device=device)[None]
    one, path = torch.tensor([5], device=device), torch.tensor([[0, 3, 6]], device=device)
    backend_of(way, device).compact_kv(k, v, table, torch.zeros_like(one), one, path, 4)
    for pool, old in zip((k, v), before, strict=True):
        new = pool.view(torch.uint8)
        assert torch.equal(new[:, 5:8], old[:, [5, 8, 11]])
        assert torch.equal(new[:, 8:], old[:, 8:])
        assert torch.equal(new[:, :5], old[:, :5])


def test_what_was_stored_is_read_times_its_scale(device: torch.device) -> None:
    rows = torch.tensor([3, 1], device=device)
    k_pool, v_pool = (torch.zeros(4, 2, 8, device=device).to(FLOAT8) for _ in range(2))
    kv = LayerKV(k_pool, v_pool, KvScale(0.5, 2.0))
    k, v = (normal(2, 2, 8, seed=seed, device=device) for seed in (0, 1))
    TORCH.store_kv(kv, rows, k, v)
    read_k, read_v = TORCH.load_kv(kv, rows, torch.float32)
    assert torch.equal(read_k, (k / 0.5).to(FLOAT8).float() * 0.5)
    assert torch.equal(read_v, (v / 2.0).to(FLOAT8).float() * 2.0)


def test_other_rows_are_read_as_they_are(device: torch.device) -> None:
    pool, rows = normal(4, 2, 8, device=device), torch.tensor([2, 0], device=device)
    k, v = TORCH.load_kv(LayerKV(pool, pool), rows, torch.float32)
    assert torch.equal(k, pool[rows])
    assert torch.equal(v, pool[rows])
