"""The LoRA adapters of an engine, and which of them each running request uses."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdecode_engine.model.layers.adapted_linear import ActiveAdapters, AdapterRows
from specdecode_engine.model.target.language_model import LanguageModel

NO_ADAPTER = 0
"""The slot of requests without one."""


class AdapterPool:
    """Chooses the adapters of the rows of each forward; the rows are on a CPU.

    Args:
        base: the model without adapters.
        adapted: the same model, in which `active` applies.
        names: of the adapters, from slot 1 on.
        num_rows: of the request table.
    """

    def __init__(
        self,
        base: LanguageModel,
        adapted: LanguageModel,
        active: ActiveAdapters,
        names: Sequence[str],
        num_rows: int,
    ) -> None:
        self._base = base
        self._adapted = adapted
        self._active = active
        self._slots: Mapping[str, int] = {
            "": NO_ADAPTER,
            **{name: slot for slot, name in enumerate(names, start=1)},
        }
        self._of_request = np.zeros(num_rows, dtype=np.int64)

    def __contains__(self, name: str) -> bool:
        return name in self._slots

    def open(self, req_index: int, name: str) -> None:
        """Start a request with an adapter of the pool, or without one: an empty name."""
        self._of_request[req_index] = self._slots[name]

    @contextmanager
    def applied(self, req_indices: Tensor) -> Iterator[LanguageModel]:
        """Yield the model for rows of requests req_indices [rows] i64; the base if none has one."""
        groups = self._groups(req_indices)
        if not groups:
            yield self._base
            return
        self._active.groups = groups
        try:
            yield self._adapted
        finally:
            self._active.groups = ()

    def _groups(self, req_indices: Tensor) -> tuple[AdapterRows, ...]:
        slots = self._of_request[req_indices.numpy()]
        if not slots.any():
            return ()
        found = np.unique(slots)
        if len(found) == 1:
            return (AdapterRows(int(found[0]), None),)
        return tuple(
            AdapterRows(int(slot), _rows(np.flatnonzero(slots == slot)))
            for slot in found
            if slot != NO_ADAPTER
        )


def _rows(places: NDArray[np.int64]) -> Tensor | slice:
    first, last = int(places[0]), int(places[-1])
    if last - first + 1 == len(places):
        return slice(first, last + 1)
    return torch.from_numpy(places)
