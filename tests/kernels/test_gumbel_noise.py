"""Noise of the largest and smallest hashes: finite, so that the only allowed token is sampled."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from specdecode_kernels import TORCH, SamplingParamsBatch
from specdecode_kernels.torch.sampling import gumbel_noise, noise_of_bits
from tests.kernels.hashes import LARGEST, seed_of, token_of

EDGE = 1 << 16
ROUNDED_UP = 128
"""Largest hashes, which round to 2^32 as float32."""
HASHES = (LARGEST, LARGEST - ROUNDED_UP + 1, LARGEST - ROUNDED_UP, LARGEST // 2, 1, 0)
POSITION, VOCAB = 7, 40


def edges() -> torch.Tensor:
    """The smallest hashes, then the largest ones, ascending."""
    return torch.cat([torch.arange(EDGE), torch.arange(2**32 - EDGE, 2**32)])


def batch_of(seed: int, **filters: float) -> SamplingParamsBatch:
    ones = torch.ones(1, dtype=torch.float64)
    return SamplingParamsBatch(
        temperature=ones,
        top_k=(ones * filters.get("top_k", 0)).long(),
        top_p=ones * filters.get("top_p", 1.0),
        min_p=ones * filters.get("min_p", 0.0),
        seeds=torch.tensor([seed]),
        is_filtered=bool(filters),
    )


def test_noise_of_the_first_and_last_hashes_is_finite() -> None:
    """The formula in float64 has the same noise of all hashes that do not round to 2^32."""
    noise = noise_of_bits(edges()[None])[0]
    assert noise.isfinite().all()
    assert (noise.diff() <= 0).all()
    assert (noise[0].item(), noise[-1].item()) == pytest.approx((22.87386, -2.81154), abs=1e-5)
    uniform = ((edges().float() + 0.5) * 2.0**-32)[:-ROUNDED_UP].double()
    exact = -torch.log(-torch.log1p(-uniform))
    assert (noise[:-ROUNDED_UP] - exact).abs().max() < 2e-6
    assert (noise[-ROUNDED_UP:] == noise[-ROUNDED_UP - 1]).all()


@pytest.mark.parametrize("bits", HASHES)
def test_seeds_and_tokens_are_found_by_their_hash(bits: int) -> None:
    wanted = noise_of_bits(torch.tensor([[bits]]))
    position = torch.tensor([POSITION])
    seed = torch.tensor([seed_of(bits, 11, POSITION)])
    assert torch.equal(gumbel_noise(seed, position, torch.tensor([11])), wanted)
    token = torch.tensor([token_of(bits, -5, POSITION)])
    assert torch.equal(gumbel_noise(torch.tensor([-5]), position, token), wanted)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bits", HASHES)
def test_the_only_allowed_token_is_sampled(bits: int, dtype: torch.dtype) -> None:
    token, positions = 23, torch.tensor([[POSITION]])
    batch = batch_of(seed_of(bits, token, POSITION))
    masked = torch.full((1, 1, VOCAB), -torch.inf, dtype=dtype)
    masked[0, 0, token] = -3.0
    assert TORCH.sample(masked, batch, positions, None).item() == token
    likeliest = torch.linspace(5, -5, VOCAB, dtype=dtype)[None, None].clone()
    likeliest[0, 0, token] = 9.0
    each_alone: tuple[dict[str, Any], ...] = ({"top_k": 1}, {"top_p": 0.5}, {"min_p": 1.0})
    for filters in each_alone:
        filtered = batch_of(int(batch.seeds.item()), **filters)
        assert TORCH.sample(likeliest, filtered, positions, None).item() == token
    perturbed = TORCH.perturb_logits(masked, batch, positions, None, torch.tensor([0]))
    assert perturbed.isfinite().nonzero().tolist() == [[0, 0, token]]


def test_forbidden_tokens_are_never_sampled() -> None:
    """Every set of allowed tokens, each with one of the largest hashes."""
    random = np.random.default_rng(3)
    positions = torch.tensor([[POSITION]])
    ids = torch.tensor([token_of(LARGEST - place, 9, POSITION) for place in range(VOCAB)])
    batch = batch_of(9)
    for count in range(1, VOCAB):
        allowed = random.choice(VOCAB, count, replace=False).tolist()
        logits = torch.full((1, 1, VOCAB), -torch.inf)
        logits[0, 0, allowed] = torch.tensor(random.normal(size=count), dtype=torch.float32)
        for one in (batch, replace(batch, top_k=torch.tensor([3]), is_filtered=True)):
            assert TORCH.sample(logits, one, positions, ids).item() in allowed
