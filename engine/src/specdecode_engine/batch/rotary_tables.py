"""Which rotary table of a network each request uses.

The table follows from the tokens that the request may come to, prompt and answer, so it is the same
before and after a preemption, with a draft and without one, in every batch.
"""

from bisect import bisect_left
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RotaryLimits:
    """The rotary tables of one network, which lie one after the other.

    Each is for texts of at most its limit, prompt and answer: a request uses the first one that
    suffices for its prompt and max_tokens. Its frequencies are those of a text of that length. Of a
    table beyond the context length only the rows in the context exist.
    """

    limits: tuple[int, ...]  # in tokens, ascending
    context_length: int

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of each table."""
        return tuple(min(limit, self.context_length) for limit in self.limits)

    def first_row(self, length: int) -> int:
        """Return the row of position 0 in the table for texts of up to `length` tokens."""
        return sum(self.rows[: bisect_left(self.limits, length)])


class RotaryOffsets:
    """The first row of each request's rotary table, by request index.

    A network with one table, as nearly all have, needs none; its rows are the positions.
    """

    def __init__(self, limits: RotaryLimits, num_rows: int, device: torch.device) -> None:
        self._limits = limits
        self._first_rows: Tensor | None = None
        if len(limits.limits) > 1:
            self._first_rows = torch.zeros(num_rows, dtype=torch.int64, device=device)

    def open(self, req_index: int, length: int) -> None:
        """Choose the table of a request that ends at `length` tokens at most."""
        if self._first_rows is not None:
            first_row = self._limits.first_row(length)
            self._first_rows[req_index : req_index + 1].fill_(first_row)

    def rows(self, req_indices: Tensor, positions: Tensor) -> Tensor:
        """Return the rows of the tables for `positions` of `req_indices` [T] i64, elementwise."""
        if self._first_rows is None:
            return positions
        return positions + self._first_rows[req_indices]
