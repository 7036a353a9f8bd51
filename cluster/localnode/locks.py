"""Lets one process at a time do a thing; the kernel gives the lock back when that process dies."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from localnode.progress import report


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock file for the time of the body, after waiting for whoever has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"  waiting for another localnode (lock {path})")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
