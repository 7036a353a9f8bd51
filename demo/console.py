"""What the demo prints: a line per step, with the seconds it took."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


class DemoFailed(Exception):
    """A step failed; the message has what was seen and what to look at."""


class Console:
    """Prints steps and remembers how long each took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str, caption: str) -> Iterator[None]:
        """Announce a step and, when it is over, print its seconds."""
        number = len(self.seconds) + 1
        print(f"\n[{number}] {caption}", flush=True)
        started = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - started, 1)
        print(f"    done in {self.seconds[name]} s", flush=True)

    def note(self, text: str) -> None:
        """Print one indented line."""
        print(f"    {text}", flush=True)

    def stream(self, text: str) -> None:
        """Print a piece of a line as it comes."""
        sys.stdout.write(text)
        sys.stdout.flush()
