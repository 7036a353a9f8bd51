"""The newest target features of every slot, kept in a ring until the draft has consumed them."""

import torch
from torch import Tensor

from specdecode_engine.slots import DecodeBatch, Span


class FeatureRing:
    """Features by slot and position modulo the ring's length.

    A verify round writes up to `round_rows` rows past the last token that counts, so only
    `kept` = length - round_rows positions before it are sure to be there still.
    """

    def __init__(
        self,
        slots: int,
        kept: int,
        round_rows: int,
        width: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.kept = kept
        self._length = kept + round_rows
        self._rows = torch.zeros(slots, self._length, width, dtype=dtype, device=device)

    def write_span(self, span: Span, features: Tensor) -> None:
        """Keep the end of a span's features [rows, width]."""
        count = min(span.end - span.start, self._length)
        positions = torch.arange(span.end - count, span.end, device=features.device)
        self._rows[span.slot, positions % self._length] = features[-count:]

    def write_rows(self, batch: DecodeBatch, num_rows: int, features: Tensor) -> None:
        """Keep features [B, num_rows, width] of positions length .. length + num_rows - 1."""
        offsets = torch.arange(num_rows, device=features.device)
        places = (batch.lengths[:, None] + offsets) % self._length
        self._rows[batch.slots[:, None], places] = features

    def read_span(self, span: Span) -> Tensor:
        """Return the features [rows, width] of a span that is still kept; it may be empty."""
        positions = torch.arange(span.start, span.end, device=self._rows.device)
        return self._rows[span.slot, positions % self._length]

    def read(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Return features [T, width] at `positions` of `slots`, elementwise."""
        return self._rows[slots, positions % self._length]
