"""What a drafter knows of the rows that its KV lacks."""

import torch

from specdecode_engine.speculate.draft_state import DraftKvProgress


def test_no_more_rows_are_missing_than_there_are() -> None:
    """Each step may commit eight tokens and commits two: bounds add up to more than its rows."""
    progress = DraftKvProgress(num_rows=4, device=torch.device("cpu"))
    progress.open(1, 10)
    rows = 12
    for _ in range(100):
        progress.add_pending([1], [rows], [8])
        rows += 2
    assert progress.max_pending([1], [rows]) == [rows]
    progress.complete([1])
    progress.add_pending([1], [rows], [8])
    assert progress.max_pending([1], [rows + 2]) == [8]
