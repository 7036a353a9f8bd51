"""Where the host waited for the device: one record per blocking copy or read."""

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import triton

_TORCH = str(Path(torch.__file__).parent)
_OWN = str(Path(__file__).parent)
_TRITON = str(Path(triton.__file__).parent)
_SKIPPED = (_TORCH, _TRITON, _OWN, contextlib.__file__)


@dataclass(frozen=True, slots=True)
class Wait:
    """One wait.

    `what` is the operation; `file` and `line` are the innermost that belong neither to torch,
    Triton nor the shadow device.
    """

    what: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.what} at {self.file}:{self.line}"

    @classmethod
    def here(cls, what: str) -> "Wait":
        """Record the caller's place."""
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename.startswith(_SKIPPED):
            frame = frame.f_back
        return cls(what, frame.f_code.co_filename, frame.f_lineno)
