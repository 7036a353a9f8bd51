"""Low-rank maps with random factors, for tests."""

from collections.abc import Sequence

import torch

from specdecode_kernels import Backend, LowRankFactors, LowRankMaps, LowRankRows
from tests.kernels.mixtures import normal


def draw_factors(outputs: int, inputs: int, rank: int, seed: int) -> LowRankFactors:
    """Factors in float32, the same in every run."""
    return LowRankFactors(normal(rank, inputs, seed=seed), normal(outputs, rank, seed=seed + 1))


def maps_of(ops: Backend, factors: Sequence[LowRankFactors | None]) -> LowRankMaps:
    """Maps of slots from 1 on, as a backend takes them."""
    maps = LowRankMaps.empty(1 + len(factors))
    for slot, one in enumerate(factors, start=1):
        is_plain = one is None or ops.pack_low_rank is None
        maps.put(slot, one if is_plain else ops.pack_low_rank(one))  # type: ignore[misc, arg-type]
    return maps


def rows_of(slots: Sequence[int]) -> LowRankRows:
    """Sort rows by their slots; those of slot 0 have no map."""
    rows, groups = list[int](), list[tuple[int, int, int]]()
    for slot in sorted({*slots} - {0}):
        own = [row for row, other in enumerate(slots) if other == slot]
        groups.append((slot, len(rows), len(own)))
        rows += own
    return LowRankRows(torch.tensor(rows), torch.tensor(groups), len(slots))
