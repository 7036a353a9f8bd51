"""The kernel's noise of the largest and smallest hashes, and the only allowed token it samples."""

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from specdecode_kernels.torch.sampling import noise_of_bits
from specdecode_kernels.triton import noise
from tests.kernels.hashes import token_of
from tests.kernels.test_gumbel_noise import HASHES, POSITION, VOCAB, edges
from tests.kernels.test_sample_triton import sampling
from tests.kernels.triton_ops import TRITON

BLOCK = 4096


@triton.jit  # type: ignore[untyped-decorator]
def noise_kernel(bits_ptr, out_ptr, BLOCK: tl.constexpr):
    here = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + here, noise.noise_of_bits(tl.load(bits_ptr + here).to(tl.uint32)))


def test_noise_of_the_first_and_last_hashes_is_finite(device: torch.device) -> None:
    bits = edges().to(device)
    found = torch.empty(len(bits), device=device)
    noise_kernel[(len(bits) // BLOCK,)](bits, found, BLOCK=BLOCK)
    assert found.isfinite().all()
    torch.testing.assert_close(found, noise_of_bits(bits[None])[0], rtol=3e-7, atol=3e-7)


@pytest.mark.parametrize("bits", [HASHES[0], HASHES[1], HASHES[-1]])
def test_the_only_allowed_token_is_sampled(bits: int, device: torch.device) -> None:
    """Four rows: a mask, and each filter that leaves one token."""
    place, seed = 23, 564
    ids = torch.arange(VOCAB, device=device)
    ids[place] = token_of(bits, seed, POSITION)
    masked = torch.full((1, 1, VOCAB), -torch.inf, device=device)
    masked[0, 0, place] = -3.0
    likeliest = torch.linspace(5, -5, VOCAB, device=device)[None, None].clone()
    likeliest[0, 0, place] = 9.0
    logits = torch.cat([masked, likeliest, likeliest, likeliest])
    positions = torch.full((4, 1), POSITION, device=device)
    filters: dict[str, Any] = {
        "top_k": [0, 1, 0, 0],
        "top_p": [1.0, 1.0, 0.5, 1.0],
        "min_p": [0.0, 0.0, 0.0, 1.0],
    }
    rows = sampling(device, temperature=[1.0] * 4, seeds=[seed] * 4, **filters)
    assert TRITON.sample(logits, rows, positions, ids).tolist() == [[place]] * 4
    alone = sampling(device, temperature=[1.0], seeds=[seed])
    assert TRITON.sample(masked, alone, positions[:1], ids).tolist() == [[place]]
