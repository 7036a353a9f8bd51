"""Progress of an engine before it serves: a bar on stderr, and the same numbers for a report."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

from specdecode_api.report import StartProgress

ShowProgress = Callable[[StartProgress], None]
"""Called with what an engine does before it serves, from any thread."""

BYTES = "B"
REPORT_S = 0.5


@contextmanager
def progress_bar(
    show: ShowProgress | None, stage: str, total: int, unit: str
) -> Iterator[Callable[[int], None]]:
    """Yield what adds to the work that is done.

    Args:
        show: called at the beginning, at most every `REPORT_S`, and at the end; None shows no bar
            either.
        unit: of `total`, such as `BYTES`.
    """
    if show is None:
        yield lambda count: None
        return
    done, next_s = 0, 0.0

    def add(count: int) -> None:
        nonlocal done, next_s
        done += count
        bar.update(count)
        if done >= total or time.monotonic() >= next_s:
            next_s = time.monotonic() + REPORT_S
            show(StartProgress(stage=stage, done=done, total=total, unit=unit))

    scaled = unit == BYTES
    with tqdm(total=total, desc=stage, unit=unit, unit_scale=scaled, file=sys.stderr) as bar:
        add(0)
        yield add
