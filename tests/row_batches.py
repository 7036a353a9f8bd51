"""Rows alone against the same rows in batches of every size, at every place, on several threads."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

ROWS = 67
THREADS = (1, 2, 3)
SIZES = range(2, ROWS + 1)
SOME_SIZES = (2, 9, ROWS)
"""For what takes long and computes row by row."""


def assert_rows_are_independent(
    compute: Callable[[Tensor], Tensor], sizes: Iterable[int] = SIZES
) -> None:
    """Compare bits; a batch of one row repeated shows that row at every place of that size.

    Args:
        compute: maps the numbers [n] i64 of rows, below `ROWS`, to what is computed of them
            [n, ...].
        sizes: of the batches.
    """
    threads_before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = torch.cat([compute(torch.tensor([row])) for row in range(ROWS)])
        assert alone.isfinite().all()
        assert len(alone.unique(dim=0)) == ROWS, "rows are to differ"
        for threads in THREADS:
            torch.set_num_threads(threads)
            for batch in _batches(sizes):
                differ = (compute(batch) != alone[batch]).flatten(1).any(dim=1)
                places = differ.nonzero().flatten().tolist()
                assert not places, f"{len(batch)} rows on {threads} threads: rows {places} differ"
    finally:
        torch.set_num_threads(threads_before)


def _batches(sizes: Iterable[int]) -> list[Tensor]:
    repeated = [torch.full((size,), size - 1) for size in sizes]
    return [*repeated, torch.arange(ROWS), torch.arange(ROWS).flip(0)]
