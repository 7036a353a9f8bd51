"""Counts the Python calls of our code in every thread, between two moments."""

import itertools
import statistics
import sys
import threading
from collections.abc import Sequence
from types import CodeType, FrameType

OURS = "/src/specdecode_"
STEP = "EngineCore.step"
_NOT_FUNCTIONS = frozenset({"<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>", "<lambda>"})


class CallRecorder:
    """A profile function that notes which of our functions are called while it records.

    `install` comes before the threads of the server are started: each of them takes the profile
    function along when it begins.
    """

    def __init__(self) -> None:
        self.is_recording = False
        self._calls: list[CodeType] = []  # appending is atomic, so threads need no lock

    def install(self) -> None:
        """Profile this thread and every one that starts from now on."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def take(self) -> tuple[CodeType, ...]:
        """Return the calls in order of time, all threads in one sequence, and forget them."""
        calls, self._calls = self._calls, []
        return tuple(code for code in calls if is_ours(code))

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        if self.is_recording and event == "call":
            self._calls.append(frame.f_code)


def is_ours(code: CodeType) -> bool:
    """Whether code is a function or method of one of the four packages."""
    return OURS in code.co_filename and code.co_name not in _NOT_FUNCTIONS


def function_name(code: CodeType) -> str:
    """Name a function by its file below `src/` and its qualified name."""
    return f"{file_name(code)}: {code.co_qualname}"


def file_name(code: CodeType) -> str:
    """Name a file by its path below `src/`."""
    return code.co_filename.rpartition("/src/")[2]


def step_sizes(calls: Sequence[CodeType]) -> list[int]:
    """Count the calls from each step of the engine core up to the next one.

    What comes before the first step and after the beginning of the last one is left out, and so
    is the first step, which prefills.

    Raises:
        ValueError: there are fewer than three steps; without a decode step nothing can be counted.
    """
    starts = [index for index, code in enumerate(calls) if code.co_qualname == STEP]
    if len(starts) < 3:
        raise ValueError(
            f"{len(starts)} calls of {STEP} were traced; at least 3 are needed. If the class was "
            "renamed, change STEP in checks/request_trace/calls.py"
        )
    return [end - start for start, end in itertools.pairwise(starts[1:])]


def median_step(calls: Sequence[CodeType]) -> int:
    """Return the median number of calls per decode step."""
    return round(statistics.median(step_sizes(calls)))
