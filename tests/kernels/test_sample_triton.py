"""The kernel chooses the reference's token: noise, filters, ties, parts of large vocabularies."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from specdecode_kernels import TORCH, SamplingParamsBatch
from tests.kernels.tensors import below, inside_wider, normal
from tests.kernels.triton_ops import TRITON


def sampling(
    device: torch.device,
    *,
    temperature: Sequence[float],
    top_k: Sequence[int] | None = None,
    top_p: Sequence[float] | None = None,
    min_p: Sequence[float] | None = None,
    seeds: Sequence[int] | None = None,
) -> SamplingParamsBatch:
    """Columns of one table, as the engine keeps them: not contiguous."""
    count = len(temperature)
    columns = (temperature, top_k or [0] * count, top_p or [1.0] * count, min_p or [0.0] * count)
    table = torch.tensor(columns, dtype=torch.float64, device=device).t().contiguous()
    return SamplingParamsBatch(
        temperature=table[:, 0],
        top_k=table[:, 1].long(),
        top_p=table[:, 2],
        min_p=table[:, 3],
        seeds=torch.tensor(seeds or range(count), device=device),
        is_filtered=any(x is not None for x in (top_k, top_p, min_p)),
        has_top_k_and_top_p=any(k > 0 and p < 1 for k, p in zip(*columns[1:3], strict=True)),
    )


@pytest.mark.parametrize("vocab", [1, 2, 300, 1025, 5000])
def test_without_filters_it_equals_the_reference(vocab: int, device: torch.device) -> None:
    logits = normal(4, 3, vocab, seed=vocab, device=device) * 2
    rows = sampling(device, temperature=[0.7, 0.0, 1.0, 1.9], seeds=[5, 6, -(2**63), 2**62 + 12345])
    positions = below(100_000, 4, 3, device=device)
    wanted = TORCH.sample(logits, rows, positions, None)
    assert torch.equal(TRITON.sample(logits, rows, positions, None), wanted)
    assert torch.equal(TRITON.sample(inside_wider(logits), rows, positions, None), wanted)
    assert torch.equal(TRITON.sample(logits, None, positions, None), logits.argmax(dim=-1))


def test_on_equal_logits_the_noise_alone_decides(device: torch.device) -> None:
    """24 rows of 3000 tokens: one wrong bit of the hash would choose otherwise."""
    rows = sampling(device, temperature=[1.0] * 8, seeds=[(-5) ** (3 * n) for n in range(8)])
    positions = torch.tensor([[0, 1, 2**31 + 7]], device=device).expand(8, 3)
    logits = torch.zeros(8, 3, 3000, device=device)
    wanted = TORCH.sample(logits, rows, positions, None)
    assert len(wanted.unique()) > 20
    assert torch.equal(TRITON.sample(logits, rows, positions, None), wanted)


def test_noise_belongs_to_ids_and_not_to_places(device: torch.device) -> None:
    logits = normal(3, 2, 200, device=device)
    rows = sampling(device, temperature=[1.0] * 3)
    positions = below(50, 3, 2, device=device)
    ids = below(128_000, 200, device=device)
    wanted = TORCH.sample(logits, rows, positions, ids)
    assert torch.equal(TRITON.sample(logits, rows, positions, ids), wanted)
    assert not torch.equal(wanted, TORCH.sample(logits, rows, positions, None))


def test_among_equals_the_lowest_is_chosen(device: torch.device) -> None:
    logits = torch.zeros(1, 5, 9000, device=device)
    logits[0, 0, [70, 4100, 8200]] = 1.0
    logits[0, 1] = -torch.inf
    logits[0, 2, :8999] = -torch.inf
    logits[0, 3] = -torch.inf
    logits[0, 3, [6000, 8500]] = torch.finfo(torch.float32).min
    logits[0, 4, ::2] = -0.0
    positions = torch.zeros(1, 5, dtype=torch.int64, device=device)
    lowest = [[70, 0, 8999, 6000, 0]]
    assert TRITON.sample(logits, None, positions, None).tolist() == lowest
    greedy = sampling(device, temperature=[0.0], top_k=[1])
    assert TRITON.sample(logits, greedy, positions, None).tolist() == lowest
    rows = sampling(device, temperature=[1.0], top_k=[1], top_p=[0.9], min_p=[0.1])
    assert TRITON.sample(logits, rows, positions, None).tolist() == lowest


def assert_equals_reference(
    logits: Tensor, rows: SamplingParamsBatch, draws: int, seed: int = 0
) -> Tensor:
    """Sample each request's one row at many positions; return the tokens [B, draws]."""
    logits = logits.expand(-1, draws, -1)
    positions = below(1_000_000, len(logits), draws, seed=seed, device=logits.device)
    wanted = TORCH.sample(logits, rows, positions, None)
    assert torch.equal(TRITON.sample(logits, rows, positions, None), wanted)
    return wanted


@pytest.mark.parametrize("seed", range(6))
def test_filters_leave_the_reference_s_token(seed: int, device: torch.device) -> None:
    """Half the cases have many equal logits: a border then runs through equals."""
    vocab = [3, 12, 40, 300, 700, 64][seed]
    logits = normal(4, 1, vocab, seed=seed, device=device) * 2
    if seed % 2:
        logits = logits.round() * 0.37
    if seed == 4:
        logits[:, :, ::3] = -torch.inf
    rows = sampling(
        device,
        temperature=[0.7, 1.0, 1.3, 1.0],
        top_k=[[0, 2, 7, vocab + 5], [vocab // 2, 0, 1, 5]][seed % 2],
        top_p=[[0.61, 1.0, 0.97, 0.13], [0.93, 0.5003, 0.61, 1.0]][seed % 2],
        min_p=[[0.0, 0.011, 0.0, 0.34], [0.0, 0.0, 1.0, 0.0]][seed % 2],
    )
    assert_equals_reference(logits, rows, draws=6, seed=seed)


def test_a_logit_that_is_no_number_is_never_chosen(device: torch.device) -> None:
    logits = torch.full((1, 1, 300), torch.nan, device=device)
    logits[0, 0, 40] = -5.0
    positions = torch.zeros(1, 1, dtype=torch.int64, device=device)
    rows = sampling(device, temperature=[1.0], top_k=[4])
    assert TRITON.sample(logits, None, positions, None).item() == 40
    assert TRITON.sample(logits, rows, positions, None).item() == 40
