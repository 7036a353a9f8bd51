"""Prints what is being done and how long it took, one line for each step."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


def report(text: str) -> None:
    """Print one line for the person who waits; stdout stays free for results."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def step(name: str) -> Iterator[None]:
    """Time the body and print its name and seconds, also when it fails."""
    started = time.monotonic()
    outcome = "FAILED after"
    try:
        yield
        outcome = ""
    finally:
        report(f"  {name:<44} {outcome:>12} {time.monotonic() - started:7.1f} s")
