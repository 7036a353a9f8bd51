"""A progress bar on a terminal. Without one, `Counts` logs a line per tenth."""

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from shutil import get_terminal_size
from typing import TextIO

from specdecode_api.report import ModelReport, ModelState
from specdecode_engine.fetch.progress import Counts

INTERVAL_S = 0.2
_CELLS = 24
_LOGGED = "specdecode_engine.fetch"


def bar(report: ModelReport, bytes_per_s: float, columns: int) -> str:
    """Return one line about a model: share, bytes, rate, and the time left at that rate."""
    total, done = report.bytes_total, report.bytes_done
    if not total:
        return f"{report.role} {report.state}"[:columns]
    full = _CELLS * done // total
    left = f", {(total - done) / bytes_per_s:.0f} s left" if bytes_per_s > 0 else ""
    line = (
        f"{report.role:6} {100 * done // total:3d} % [{'#' * full}{'.' * (_CELLS - full)}] "
        f"{done / 1e9:.2f} of {total / 1e9:.2f} GB, {bytes_per_s / 1e6:.0f} MB/s{left}"
    )
    return line[:columns]


@contextmanager
def progress_shown(counts: Counts, stream: TextIO = sys.stderr) -> Iterator[None]:
    """Draw the model under way while the body runs, if the stream is a terminal."""
    if not stream.isatty():
        yield
        return
    logger, has_ended = logging.getLogger(_LOGGED), threading.Event()
    level = logger.level
    logger.setLevel(logging.WARNING)  # lines of the log would cut the bar
    thread = threading.Thread(target=_draw, args=(counts, stream, has_ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()
        logger.setLevel(level)


def _draw(counts: Counts, stream: TextIO, has_ended: threading.Event) -> None:
    began = dict[str, tuple[float, int]]()  # time and bytes at which a download was first seen
    while True:
        is_last = has_ended.wait(INTERVAL_S)
        for report in counts.progress().models:
            if report.state is ModelState.DOWNLOADING or (is_last and report.role in began):
                now_s = time.monotonic()
                since_s, bytes_before = began.setdefault(report.role, (now_s, report.bytes_done))
                rate = (report.bytes_done - bytes_before) / max(now_s - since_s, INTERVAL_S)
                stream.write(f"\r\x1b[K{bar(report, rate, get_terminal_size().columns - 1)}")
                if is_last:
                    stream.write("\n")
        stream.flush()
        if is_last:
            return
