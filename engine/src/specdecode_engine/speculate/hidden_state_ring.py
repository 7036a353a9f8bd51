"""The newest aux hidden states of every request, kept in a ring until the draft has read them."""

import torch
from torch import Tensor

from specdecode_engine.batch.request_table import DecodeBatch, Span


class HiddenStateRing:
    """Hidden states by slot and position modulo the ring's length.

    A step writes up to `step_rows` rows after the last committed token, so only the
    `kept` = length - step_rows positions before it are certain to be still there.
    """

    def __init__(
        self,
        slots: int,
        kept: int,
        step_rows: int,
        width: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.kept = kept
        self._length = kept + step_rows
        self._rows = torch.zeros(slots, self._length, width, dtype=dtype, device=device)

    def write_span(self, span: Span, hidden: Tensor) -> None:
        """Keep the end of a span's hidden states [rows, width]."""
        slot, start, end = span
        count = min(end - start, self._length)
        positions = torch.arange(end - count, end, device=hidden.device)
        self._rows[slot, positions % self._length] = hidden[-count:]

    def write_rows(self, batch: DecodeBatch, num_rows: int, hidden: Tensor) -> None:
        """Keep hidden states [B, num_rows, width] of positions length .. length + num_rows - 1."""
        offsets = torch.arange(num_rows, device=hidden.device)
        places = (batch.lengths[:, None] + offsets) % self._length
        self._rows[batch.slots[:, None], places] = hidden

    def read_span(self, span: Span) -> Tensor:
        """Return the hidden states [rows, width] of a span that is still kept; it may be empty."""
        slot, start, end = span
        positions = torch.arange(start, end, device=self._rows.device)
        return self._rows[slot, positions % self._length]

    def read(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Return hidden states [T, width] at `positions` of `slots`, elementwise."""
        return self._rows[slots, positions % self._length]
