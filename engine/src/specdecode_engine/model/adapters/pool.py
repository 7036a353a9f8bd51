"""The LoRA adapters of an engine, and which of them each running request uses."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdecode_engine.model.adapters.loading import LoadedAdapters
from specdecode_engine.model.target.language_model import LanguageModel
from specdecode_kernels import LowRankRows

NO_ADAPTER = 0
"""The slot of requests without one."""


class AdapterPool:
    """Chooses the adapters of the rows of each forward; the rows are on a CPU.

    Args:
        loaded: the adapters; they may change between steps.
        num_rows: of the request table.
    """

    def __init__(self, loaded: LoadedAdapters, num_rows: int) -> None:
        self._loaded = loaded
        self._of_request = np.zeros(num_rows, dtype=np.int64)

    def __contains__(self, name: str) -> bool:
        return name in self._loaded.slots

    def open(self, req_index: int, name: str) -> None:
        """Start a request with an adapter of the pool, or without one: an empty name."""
        self._of_request[req_index] = self._loaded.slots[name] if name else NO_ADAPTER

    def slots_of(self, req_indices: Tensor) -> NDArray[np.int64]:
        """Return the slot of each row, of requests req_indices [rows] i64."""
        slots: NDArray[np.int64] = self._of_request[req_indices.numpy()]
        return slots

    @contextmanager
    def applied(self, req_indices: Tensor) -> Iterator[LanguageModel]:
        """Yield the model for rows of requests req_indices [rows] i64; the base if none has one."""
        rows = _sorted_rows(self.slots_of(req_indices))
        if rows is None:
            yield self._loaded.base
            return
        adapted = self._loaded.adapted
        adapted.active.rows = rows
        try:
            yield adapted.model
        finally:
            adapted.active.rows = None


def _sorted_rows(slots: NDArray[np.int64]) -> LowRankRows | None:
    """Sort rows by their slots [rows]; None if no row has an adapter."""
    adapted = np.flatnonzero(slots)
    if not len(adapted):
        return None
    order = adapted[np.argsort(slots[adapted], kind="stable")]
    found, starts, counts = np.unique(slots[order], return_index=True, return_counts=True)
    groups = np.stack([found, starts, counts], axis=1)
    return LowRankRows(torch.from_numpy(order), torch.from_numpy(groups), len(slots))
