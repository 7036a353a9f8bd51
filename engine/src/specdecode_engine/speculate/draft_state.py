"""What a drafter keeps for each request between steps.

That is how far the draft's KV is computed, as far as the host knows, and for an EAGLE head the
newest aux hidden states of the target.
"""

from collections.abc import Sequence as Items
from itertools import repeat

import torch
from torch import Tensor

from specdecode_engine.batch.request_table import DecodeBatch, Span

KEPT_ROWS = 64
"""Hidden states that are certain to be there for rows that are computed late."""


class DraftKvProgress:
    """Bounds the draft rows that are missing before a step, per request.

    During prefill the host knows exactly how many rows are computed. Once a request decodes, the
    host only has an upper bound of what is missing: a step that is not collected yet may have
    committed fewer tokens than it could. The device knows the first missing row, so a bound is
    enough: rows before that one, which other sequences may share, are not written.
    """

    def __init__(self, num_rows: int, device: torch.device) -> None:
        self._computed: dict[int, int] = {}
        self._pending: dict[int, int] = {}
        self._invalid: set[int] = set()
        self._after_skipped: dict[int, int] = {}  # rows since, of requests with skipped rows
        # The first missing row of each request, [num_rows] i64; others only read them.
        self.first_missing = torch.zeros(num_rows, dtype=torch.int64, device=device)

    def open(self, req_index: int, rows: int) -> None:
        """Start a request whose first `rows` rows were computed for another sequence."""
        self._pending.pop(req_index, None)
        self._invalid.discard(req_index)
        self._after_skipped.pop(req_index, None)
        self.set_num_computed(req_index, rows)

    def num_computed(self, req_index: int) -> int:
        """Leading rows that are computed, during prefill."""
        return self._computed[req_index]

    def set_num_computed(self, req_index: int, rows: int) -> None:
        """Record that the first `rows` rows of a prompt are computed."""
        self._computed[req_index] = rows
        self.first_missing[req_index : req_index + 1].fill_(rows)

    def add_pending(
        self, req_indices: Items[int], required: Items[int], most_rows: Items[int]
    ) -> None:
        """Record that a step has committed up to `most_rows` tokens, per request.

        Args:
            required: rows that a draft needed before the step, per request.
        """
        pending = self._pending
        for req_index, count, rows in zip(req_indices, required, most_rows, strict=True):
            known = pending.get(req_index)
            if known is None:
                known = count - self._computed[req_index]
            pending[req_index] = known + rows
            if req_index in self._after_skipped:
                self._after_skipped[req_index] += rows

    def max_pending(self, req_indices: Items[int], required: Items[int]) -> list[int]:
        """Rows of `required` that may be missing, at least 1; exact at the first decode step.

        Bounds of many steps add up to more than all rows that there are.
        """
        pairs = zip(req_indices, required, strict=True)
        return [
            max(1, min(rows, self._pending.get(req_index, rows - self._computed[req_index])))
            for req_index, rows in pairs
        ]

    def complete(self, req_indices: Items[int]) -> None:
        """Record that no row is missing."""
        self._pending.update(dict.fromkeys(req_indices, 0))
        if self._after_skipped:
            for req_index in req_indices:
                self._after_skipped.pop(req_index, None)

    def skip(self, req_indices: Items[int]) -> None:
        """Record that rows of a step will never be computed; in next to no time."""
        skipped = self._after_skipped
        if not any(map(skipped.get, req_indices, repeat(1))):
            return  # they already were in the step before
        self._invalid.update(req_indices)
        for req_index in req_indices:
            skipped[req_index] = 0
            self._pending.pop(req_index, None)  # any row after those of the prompt may be missing

    def rows_after_skipped(self, req_index: int) -> int | None:
        """Rows since the latest that was skipped; None where `complete` came after it."""
        return self._after_skipped.get(req_index)

    def write_first_missing(self, batch: DecodeBatch, rows: Tensor) -> None:
        """Record on the device that the first `rows` [B] i64 rows are computed."""
        self.first_missing[batch.req_indices] = rows

    def invalidate(self, req_index: int) -> None:
        """Record that some rows of a request will never be computed."""
        self._invalid.add(req_index)

    def is_complete(self, req_index: int) -> bool:
        """Whether every row of a request is or can still be computed."""
        return req_index not in self._invalid


class HiddenStateRing:
    """Aux hidden states by request and position modulo the ring's length.

    A step writes up to `step_rows` rows after the last committed token, so only the `kept`
    positions before it are certain to be still there. They are for rows that steps without drafting
    leave missing.
    """

    def __init__(
        self,
        num_rows: int,
        step_rows: int,
        width: int,
        dtype: torch.dtype,
        device: torch.device,
        kept: int = KEPT_ROWS,
    ) -> None:
        self.kept = kept
        self._length = kept + step_rows
        self._rows = torch.zeros(num_rows, self._length, width, dtype=dtype, device=device)
        self._offsets = torch.arange(step_rows, device=device)

    def shift(
        self, spans: Items[Span], hidden: Tensor, progress: DraftKvProgress, lookahead: int
    ) -> tuple[list[Span], Tensor]:
        """Select the rows of prompts whose next `lookahead` tokens are known, and keep the others.

        The last rows of a span wait here: where the prompt ends, the tokens after it are not
        sampled yet.

        Args:
            hidden: [rows of all spans, width].
            progress: how many rows of each prompt are computed.

        Returns:
            Spans of rows that can be computed, and their hidden states.
        """
        known, pieces, offset = [], [hidden[:0]], 0
        for req_index, start, end in spans:
            own = hidden[offset : offset + end - start]
            offset += end - start
            first, last = progress.num_computed(req_index), end - lookahead
            if last > first:
                pieces += [self.read_span((req_index, first, min(start, last)))]
                pieces += [own[: max(last - start, 0)]]
                known.append((req_index, first, last))
            self.write_span((req_index, start, end), own)
        return known, torch.cat(pieces)

    def write_span(self, span: Span, hidden: Tensor) -> None:
        """Keep the end of a span's hidden states [rows, width]."""
        req_index, start, end = span
        count = min(end - start, self._length)
        positions = torch.arange(end - count, end, device=hidden.device)
        self._rows[req_index, positions % self._length] = hidden[-count:]

    def write_rows(self, batch: DecodeBatch, hidden: Tensor) -> None:
        """Keep hidden states [B, n, width] of positions length .. length + n - 1."""
        rows, lengths, req_indices = hidden.shape[1], batch.lengths, batch.req_indices
        if rows > 1:
            lengths = lengths[:, None] + self._offsets[:rows]
            req_indices = req_indices[:, None]
        places = torch.add(lengths % self._length, req_indices, alpha=self._length)
        # In as few operations as possible: steps without draft steps do this too.
        self._rows.view(-1, hidden.shape[2]).index_copy_(0, places.view(-1), hidden.flatten(0, 1))

    def read_span(self, span: Span) -> Tensor:
        """Return the hidden states [rows, width] of a span that is still kept; it may be empty."""
        req_index, start, end = span
        positions = torch.arange(start, end, device=self._rows.device)
        return self._rows[req_index, positions % self._length]

    def clear(self, req_index: int) -> None:
        """Make the hidden states of a request zero."""
        self._rows[req_index : req_index + 1].zero_()

    def read(self, req_indices: Tensor, positions: Tensor) -> Tensor:
        """Return hidden states [T, width] at `positions` of `req_indices`, elementwise."""
        return self._rows[req_indices, positions % self._length]
