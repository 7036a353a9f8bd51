"""Filters without sorting: the reference's token for any distribution, in few reads of a row."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from specdecode_kernels import TORCH, SamplingParamsBatch
from specdecode_kernels.torch.sampling import gumbel_noise
from specdecode_kernels.triton import filters
from tests.kernels.launched import launches
from tests.kernels.tensors import below, normal
from tests.kernels.test_sample_triton import assert_equals_reference, sampling
from tests.kernels.triton_ops import TRITON

IS_INTERPRETED = pytest.mark.skipif(torch.cuda.is_available(), reason="counts interpreted loads")


def test_filters_of_a_vocabulary_of_256_thousand(device: torch.device) -> None:
    """Two filters after each other, in 64 parts."""
    logits = normal(1, 1, 262_144, device=device) * 3
    rows = sampling(device, temperature=[0.9], top_k=[5000], top_p=[0.8])
    assert_equals_reference(logits, rows, draws=3)


@pytest.mark.parametrize("top_k", [0, 1, 700, 8999])
def test_filters_among_equal_logits_keep_the_lowest(top_k: int, device: torch.device) -> None:
    logits = torch.zeros(2, 1, 9000, device=device)
    rows = sampling(device, temperature=[1.0, 1.0], top_k=[top_k] * 2, top_p=[0.3, 1.0])
    tokens = assert_equals_reference(logits, rows, draws=3)
    assert tokens[0].max() < 0.3 * (top_k or 9000)


def test_filters_of_unusual_rows(device: torch.device) -> None:
    """Not a number, minus infinity, both zeros, one likely token, values far from each other."""
    logits = normal(7, 1, 5000, device=device)
    logits[0, :, ::2] = torch.nan
    logits[1, :, 3:] = -torch.inf
    logits[2] = -torch.inf
    logits[3] = torch.where(logits[3] > 0, 0.0, -0.0)
    logits[4, :, 4321] = 60.0
    logits[5] *= 1e30
    logits[6] -= 3e4
    rows = sampling(
        device,
        temperature=[1.0] * 7,
        top_k=[900, 0, 40, 2000, 3, 20, 1],
        top_p=[0.4, 0.5, 0.9, 0.2, 0.999, 0.9, 0.5],
        min_p=[0.0, 0.0, 0.0, 0.5, 0.0, 0.1, 0.0],
    )
    usual = torch.where(logits == logits, logits, -torch.inf)
    positions = below(1000, 7, 3, device=device)
    wanted = TORCH.sample(usual.expand(-1, 3, -1), rows, positions, None)
    assert torch.equal(TRITON.sample(logits.expand(-1, 3, -1), rows, positions, None), wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_filters_of_short_floats(dtype: torch.dtype, device: torch.device) -> None:
    """Whose many equal values make every border run through equals."""
    logits = (normal(3, 4, 5000, device=device) * 2).to(dtype)
    rows = sampling(device, temperature=[0.8, 1.0, 1.0], top_k=[0, 50, 333], top_p=[0.7, 1.0, 0.6])
    positions = below(1000, 3, 4, device=device)
    wanted = TORCH.sample(logits.float(), rows, positions, None)
    assert torch.equal(TRITON.sample(logits, rows, positions, None), wanted)


def filtered(count: int, device: torch.device) -> SamplingParamsBatch:
    """Requests that differ in which filters are on, all of which have some."""
    return sampling(
        device,
        temperature=[1.0, 0.7, 1.3] * (count // 3) + [1.0] * (count % 3),
        top_k=[(0, 40, 3000, 7)[row % 4] for row in range(count)],
        top_p=[(0.9, 0.8)[row % 2] for row in range(count)],
        min_p=[(0.0, 0.0, 0.01)[row % 3] for row in range(count)],
    )


def part_of(rows: SamplingParamsBatch, row: int) -> SamplingParamsBatch:
    """One request of a batch."""
    temperature, top_k, top_p, min_p, seeds = (x[row : row + 1] for x in rows.tensors())
    return SamplingParamsBatch(temperature, top_k, top_p, min_p, seeds, is_filtered=True)


class Measured:
    """Keeps what the last kernel of filters is given: ranks and masses of the candidates."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._kernel = filters.keep_first_kernel
        self.masses = self.ranks = self.counts = torch.empty(0)
        monkeypatch.setattr(filters, "keep_first_kernel", self)

    def __getitem__(self, grid: Any) -> Any:
        def launch(*arguments: Any, **options: Any) -> None:
            candidates, measured = arguments[8:10]
            self.counts = candidates[2]
            _, _, self.ranks, self.masses, _ = measured
            self._kernel[grid](*arguments, **options)

        return launch

    def of_row(self, row: int) -> tuple[Tensor, Tensor]:
        """Ranks and masses that were written for a row."""
        count = int(self.counts[row])
        return self.ranks[row, :, :count], self.masses[row, :, : count + (count > 0)]


def test_a_row_has_the_same_sums_alone_and_in_a_batch_of_64(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = Measured(monkeypatch)
    logits, rows = normal(64, 1, 5000, device=device) * 2, filtered(64, device)
    positions = below(1000, 64, 1, device=device)
    together = TRITON.sample(logits, rows, positions, None)
    sums = [measured.of_row(row) for row in range(64)]
    assert sum(ranks.shape[1] > 1 for ranks, _ in sums) > 16
    for row in (0, 17, 38, 63):
        one = slice(row, row + 1)
        alone = TRITON.sample(logits[one], part_of(rows, row), positions[one], None)
        assert torch.equal(alone, together[one])
        assert all(torch.equal(a, b) for a, b in zip(measured.of_row(0), sums[row], strict=True))


@contextmanager
def counted_reads(logits: Tensor) -> Iterator[list[int]]:
    """Count the interpreter's loads of tiles of contiguous logits, by row and element.

    The logit of a candidate that was just found is loaded again alone, which is not counted.
    """
    from triton.runtime.interpreter import interpreter_builder

    reads = [0] * (logits.numel() // logits.shape[-1])
    first, itemsize, vocab = logits.data_ptr(), logits.element_size(), logits.shape[-1]
    original = interpreter_builder.create_masked_load

    def load(ptrs: Any, mask: Any, *rest: Any) -> Any:
        at = (ptrs.data[mask.data].astype("int64") - first) // itemsize
        for place in at[(at >= 0) & (at < logits.numel()) & (ptrs.data.size > 1)] // vocab:
            reads[place] += 1
        return original(ptrs, mask, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter_builder, "create_masked_load", load)
        yield reads


@IS_INTERPRETED
def test_a_row_is_read_at_most_four_times() -> None:
    """Once greedy or without filters, twice with a filter, four times with top-k and top-p."""
    device = torch.device("cpu")
    logits = torch.cat([normal(6, 1, 5000, device=device), torch.zeros(6, 1, 5000)])
    kinds = [(0.0, 5, 0.5, 0.0), (1.0, 0, 1.0, 0.0), (1.0, 5, 1.0, 0.0), (1.0, 0, 0.1, 0.0)]
    kinds += [(1.0, 0, 1.0, 0.9), (1.0, 60, 0.4, 0.9)]
    temperature, top_k, top_p, min_p = zip(*kinds * 2, strict=True)
    rows = sampling(device, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    with counted_reads(logits) as reads:
        TRITON.sample(logits, rows, below(99, 12, 1, device=device), None)
    assert all(count % 5000 == 0 for count in reads)
    assert [count // 5000 for count in reads] == [1, 1, 2, 2, 2, 4] * 2


def made_from_noise(vocab: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Logits that fall as the noise of seed 0 rises: nearly every token is a candidate."""
    positions = torch.tensor([[7]], device=device)
    tokens = torch.arange(vocab, device=device)
    noise = gumbel_noise(torch.zeros(1, dtype=torch.int64, device=device), positions[0], tokens)
    ranks = noise.argsort().argsort()
    return (-1e-5 * ranks)[None].float(), positions


@IS_INTERPRETED
@pytest.mark.parametrize(("top_k", "top_p"), [(20, 1.0), (0, 0.1), (100, 0.2)])
def test_logits_made_from_the_noise_are_read_on(top_k: int, top_p: float) -> None:
    """There are more candidates than a part or a row reports; the answer is still right."""
    logits, positions = made_from_noise(150, torch.device("cpu"))
    rows = sampling(logits.device, temperature=[1.0], top_k=[top_k], top_p=[top_p])
    wanted = TORCH.sample(logits, rows, positions, None)
    with counted_reads(logits) as reads:
        assert torch.equal(TRITON.sample(logits, rows, positions, None), wanted)
    assert reads[0] > 4 * 150


@pytest.mark.parametrize(("top_k", "top_p", "min_p"), [(9, 1.0, 0.0), (0, 0.6, 0.0), (0, 1.0, 0.2)])
def test_only_top_k_with_top_p_needs_digits_of_keys(
    top_k: int, top_p: float, min_p: float, device: torch.device
) -> None:
    """Where the host knows that no request has both, two launches and two reads are left out."""
    logits = normal(2, 1, 5000, device=device) * 2
    rows = sampling(device, temperature=[1.0] * 2, top_k=[0, top_k], top_p=[top_p] * 2)
    rows = replace(rows, min_p=torch.full_like(rows.min_p, min_p), has_top_k_and_top_p=False)
    positions = below(1000, 2, 1, device=device)
    with launches() as without:
        tokens = TRITON.sample(logits, rows, positions, None)
    assert torch.equal(tokens, TORCH.sample(logits, rows, positions, None))
    with launches() as unsure:
        careful = TRITON.sample(logits, replace(rows, has_top_k_and_top_p=True), positions, None)
    assert torch.equal(tokens, careful)
    assert unsure - without == {"measure_top_k": 2}
    assert without.total() == 4
