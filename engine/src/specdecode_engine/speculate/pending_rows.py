"""Computes draft rows that steps without a draft left missing, before the next draft."""

from collections.abc import Callable
from collections.abc import Sequence as Items

from specdecode_engine.batch.request_table import DecodeBatch, Rows
from specdecode_engine.speculate.draft_state import KEPT_ROWS, DraftKvProgress


class PendingRows:
    """Catches up on rows that the forward of a draft does not compute itself.

    Args:
        kept: the latest rows of each request that can be computed; None: all of them.
        window: the latest rows of each request, which that forward computes.
        lay_out: (batch, pending, count): lays out the first `count` of the last `pending` rows of
            each request, without those already computed.
        compute: writes the keys and values of rows.
        clear: makes keys and values of rows zero.
        most_rows: that `compute` is given at once; by default all that a head can be given.
    """

    def __init__(
        self,
        progress: DraftKvProgress,
        kept: int | None,
        window: int,
        lay_out: Callable[[DecodeBatch, int, int], Rows],
        compute: Callable[[Rows], None],
        clear: Callable[[Rows], None],
        most_rows: int = KEPT_ROWS,
    ) -> None:
        self._progress = progress
        self._kept = kept
        self._window = window
        self._lay_out = lay_out
        self._compute = compute
        self._clear = clear
        self._most_rows = most_rows

    def catch_up(self, batch: DecodeBatch, required: Items[int]) -> int:
        """Compute all pending rows but the last `window`, and record that none is missing.

        Args:
            required: rows that the draft needs, per request.

        Returns:
            The most rows of a request that are left for the draft's forward, at least 1.
        """
        pending = self._progress.max_pending(batch.host_req_indices, required)
        for row, count in enumerate(pending):
            if count > self._window:
                self._catch_up_one(batch.only(row), count)
        self._progress.complete(batch.host_req_indices)
        return min(max(pending), self._window)

    def _catch_up_one(self, one: DecodeBatch, pending: int) -> None:
        """Compute all but the last `window` of one request's pending rows.

        Rows that were skipped or whose hidden states are lost are zeroed: attending to them is
        harmless and costs acceptance only.
        """
        (req_index,) = one.host_req_indices
        kept = pending if self._kept is None else self._kept
        after_skipped = self._progress.rows_after_skipped(req_index)
        if after_skipped is not None:
            kept = min(kept, max(after_skipped, self._window))
        if pending > kept:
            self._progress.invalidate(req_index)
            self._clear(self._lay_out(one, pending, pending - kept))
            pending = kept
        while pending > self._window:
            count = min(pending - self._window, self._most_rows)
            self._compute(self._lay_out(one, pending, count))
            pending -= count
