"""Signals that end a process while it downloads."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType


@contextmanager
def ended_by_signals(signals: Sequence[int], describe: Callable[[], str]) -> Iterator[None]:
    """End the process at one of the signals within the body, with one line on standard error.

    The threads of a download are not waited for: a transfer that stalls would hold the process.
    Nothing is lost, because files are written unbuffered and checked before they are used. The
    exit status is 128 plus the number of the signal, as shells report it.
    """

    def end(number: int, frame: FrameType | None) -> None:
        os.write(2, f"\n{describe()}\n".encode())
        os._exit(128 + number)

    before = {number: signal.signal(number, end) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
