"""Sampling parameters of all running sequences as tensors, one row per slot."""

import torch

from specdecode_engine.batch.request import SamplingParams
from specdecode_kernels import SamplingParamsBatch


class SamplingTable:
    """One row of numbers per slot; written when a sequence gets its slot, read by gathers.

    The host-side sets contain the slots that need optional work, so that a step without such slots
    skips it without a device synchronisation.
    """

    def __init__(self, slots: int, device: torch.device) -> None:
        self._numbers = torch.zeros(slots, 4, dtype=torch.float64, device=device)
        self._seeds = torch.zeros(slots, dtype=torch.int64, device=device)
        self.sampled: set[int] = set()
        self.filtered: set[int] = set()

    def write(self, slot: int, params: SamplingParams) -> None:
        """Fill the row of a slot from a request's parameters."""
        numbers = (params.temperature, params.top_p, float(params.top_k), params.min_p)
        self._numbers[slot] = torch.tensor(numbers, dtype=torch.float64)
        self._seeds[slot] = _signed(params.seed)
        is_sampled = params.temperature > 0
        is_filtered = params.top_k > 0 or params.top_p < 1 or params.min_p > 0
        self.sampled = self.sampled | {slot} if is_sampled else self.sampled - {slot}
        keeps = is_sampled and is_filtered
        self.filtered = self.filtered | {slot} if keeps else self.filtered - {slot}

    def rows(self, slots: list[int], *, with_filters: bool) -> SamplingParamsBatch | None:
        """Gather the parameters of a batch; None where nobody samples."""
        if not any(slot in self.sampled for slot in slots):
            return None
        places = torch.tensor(slots, device=self._seeds.device)
        numbers = self._numbers[places]
        return SamplingParamsBatch(
            temperature=numbers[:, 0],
            top_k=numbers[:, 2].to(torch.int64),
            top_p=numbers[:, 1],
            min_p=numbers[:, 3],
            seeds=self._seeds[places],
            is_filtered=with_filters and any(slot in self.filtered for slot in slots),
        )


def _signed(seed: int) -> int:
    """Fold any integer into the 64 bits of a signed tensor element."""
    seed &= 0xFFFFFFFFFFFFFFFF
    return seed - (1 << 64) if seed >= 1 << 63 else seed
