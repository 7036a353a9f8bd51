"""Which rows of a forward take the instructions for many rows, where these add in another order.

Tensor cores of compute capability 9.0 and 10.0 have instructions for 64 rows whose sums may differ
in their last bits from those for 16. So that a row's bits do not depend on the forward, its path
follows from its position in the text: prompt tokens in whole blocks of `PROMPT_BLOCK` before the
last token take the path for many rows, all others that for few.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

PROMPT_BLOCK = 64
"""Prompt tokens of a block, for every form and compute capability: none was timed on a GPU."""


def tokens_in_blocks(prompt_tokens: int) -> int:
    """Return how many leading tokens of a prompt lie in whole blocks before its last token.

    The last token is left out: maps that compute some rows alone, as the last layer and the head
    do, then never have a row in a block.
    """
    return max(prompt_tokens - 1, 0) // PROMPT_BLOCK * PROMPT_BLOCK


@dataclass(frozen=True, slots=True, eq=False)
class RowSplit:
    """The rows of a forward by path, each once: [n] i64."""

    few: Tensor
    many: Tensor

    @property
    def num_rows(self) -> int:
        return len(self.few) + len(self.many)


class RowPaths:
    """The split of the forward that is being launched; without one all rows take that for few."""

    def __init__(self) -> None:
        self._split: RowSplit | None = None

    @contextmanager
    def split(self, rows: RowSplit | None) -> Iterator[None]:
        """Compute the maps of all rows of a forward by their paths."""
        self._split = rows
        try:
            yield
        finally:
            self._split = None

    def of(self, x: Tensor) -> RowSplit | None:
        """Return the split of rows x [rows, ...]; None where they are not those of the forward."""
        split = self._split
        return split if split is not None and split.num_rows == x.shape[0] else None
