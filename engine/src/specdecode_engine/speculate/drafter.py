"""The interface between a step and a drafter."""

from collections.abc import Sequence as Items
from typing import Protocol

from torch import Tensor

from specdecode_engine.batch.draft import Draft
from specdecode_engine.batch.request_table import DecodeBatch, Span
from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.sampling.sampler import SamplingBatch


class Drafter(Protocol):
    """Drafts tokens.

    Life of a request: `open`, then `prefill` for every prompt span, then in any order `draft` and
    `update_after_verify` (a step without `draft` leaves rows missing; the next `draft` computes
    them), then `open` again for the next request with that index. `skip` may replace `prefill` and
    `update_after_verify` at any time.
    """

    @property
    def lookahead(self) -> int:
        """Tokens after position i that the draft's row i is computed from."""
        ...

    @property
    def bonus_rows(self) -> int:
        """Rows that `draft` computes after those of tokens with KV in the target.

        1 if the bonus token has a row of its own, else 0; negative where rows read later tokens, of
        which the last ones are not final. A drafter without rows has 1.
        """
        ...

    @property
    def computes_late(self) -> bool:
        """Whether any missing row can be computed later, as the draft reads tokens alone.

        Spans that are not given to `prefill` then wait for the next one, or for `draft`.
        """
        ...

    def open(self, req_index: int, rows: int, length: int) -> None:
        """Reset a request of at most `length` tokens; its first `rows` rows are computed already.

        These are not written.
        """
        ...

    def is_complete(self, req_index: int) -> bool:
        """Whether every row up to the latest `draft` holds what `prefill` would have computed."""
        ...

    def prefill(self, spans: Items[Span], aux_hidden_states: Tensor | None) -> None:
        """Process prompt spans that the target has just computed.

        Args:
            spans: consecutive per request, starting at the `rows` given to `open`.
            aux_hidden_states: [rows of all spans, width], or None if the draft reads none.
        """
        ...

    def skip(self, req_indices: Items[int]) -> None:
        """Keep nothing of what a step computed for these requests, whose rows are never complete.

        The draft does not fit the target: its acceptance does not matter.
        """
        ...

    def clear(self, req_index: int, start: int, end: int) -> None:
        """Make rows [start, end) of a request zero: attending to them costs acceptance only."""
        ...

    def draft(self, batch: DecodeBatch, sampling: SamplingBatch, shape: DraftShape) -> Draft:
        """Draft after each bonus token, in ids of the target; `shape.num_steps` >= 1."""
        ...

    def update_after_verify(
        self, batch: DecodeBatch, most_rows: tuple[int, ...], aux_hidden_states: Tensor | None
    ) -> None:
        """Process what a step committed from position length on.

        Args:
            most_rows: bound of the rows that each sequence committed, the bonus token's included.
            aux_hidden_states: [B, path_length, width] along the accepted path, meaningless after
                its end, or None if the draft reads none.
        """
        ...
