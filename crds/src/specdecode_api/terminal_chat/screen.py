"""What a chat prints: text of a model is never a command to the terminal."""

import sys
import unicodedata
from collections.abc import Callable
from typing import TextIO

_DIM, _RESET = "\x1b[2m", "\x1b[0m"
_KEPT = frozenset("\n\t\u200d")
"""Of control and format characters: line ends, tabs, and the joiner of emoji."""


def printable(text: str) -> str:
    """Replace control characters, which move the cursor, and format ones, which reorder text."""
    return "".join(
        char if char in _KEPT or unicodedata.category(char) not in ("Cc", "Cf", "Cs") else "\ufffd"
        for char in text
    )


class Screen:
    """Writes to a terminal, or to a file or pipe without any control sequence."""

    def __init__(self, out: TextIO = sys.stdout) -> None:
        self._out = out
        self._is_terminal = out.isatty()
        self._is_dim = False

    def write(self, text: str, *, is_dim: bool = False) -> None:
        """Write text of a model; dim text is reasoning or status."""
        self._set_dim(is_dim)
        self._out.write(printable(text))
        self._out.flush()

    def line(self, text: str = "", *, is_dim: bool = False) -> None:
        """Write the rest of a line."""
        self.write(f"{text}\n", is_dim=is_dim)
        self._set_dim(False)

    def read(self, prompt: str, read_line: Callable[[str], str] = input) -> str | None:
        """Read a line from the user; None at the end of the input."""
        self._set_dim(False)
        self._out.flush()
        try:
            return read_line(prompt if self._is_terminal else "")
        except EOFError:
            return None

    def _set_dim(self, is_dim: bool) -> None:
        if self._is_terminal and is_dim != self._is_dim:
            self._out.write(_DIM if is_dim else _RESET)
        self._is_dim = is_dim
