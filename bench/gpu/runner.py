"""Runs the sections in order within one deadline; whatever happens to one, the others run.

A section that raises, or that its time runs out for, keeps the rows that it has yielded. What no
longer fits is recorded as skipped. The report is rewritten after every section.
"""

import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from bench.gpu.context import Context
from bench.gpu.record import CannotMeasure, Row, SectionRecord, State

TRACE_LINES = 6


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the run: what it is called, what it does, and the time that it gets and needs."""

    name: str
    title: str
    measure: Callable[[Context], Iterator[Row]]
    budget_s: float
    least_s: float  # with less than this left it is not begun


class OutOfTime(BaseException):
    """The section's time is over; no `except Exception` on the way may swallow it."""


def run_sections(
    sections: Sequence[Section],
    context: Context,
    ends_s: float,
    write: Callable[[tuple[SectionRecord, ...], str | None], None],
) -> tuple[SectionRecord, ...]:
    """Run all of them.

    Args:
        ends_s: when the last one has to end, by the context's clock.
        write: gets the records so far and the name of the section that begins, None at the end.
    """
    records: tuple[SectionRecord, ...] = ()
    for section in sections:
        write(records, section.name)
        records = (*records, _run(section, context, ends_s))
    write(records, None)
    return records


def _run(section: Section, context: Context, ends_s: float) -> SectionRecord:
    began_s = context.clock()
    left_s = ends_s - began_s
    if left_s < section.least_s:
        reason = f"{max(left_s, 0):.0f} s were left of the {section.least_s:g} s that it needs"
        return SectionRecord(section.name, section.title, State.SKIPPED, reason=reason)
    budget_s = min(section.budget_s, left_s)
    context.section_ends_s = began_s + budget_s
    rows: list[Row] = []
    state, reason = State.DONE, ""
    try:
        with alarm(budget_s):
            rows.extend(section.measure(context))
    except OutOfTime:
        state, reason = State.CUT, f"cut off after {budget_s:g} s"
        context.release()  # an engine that was left in the middle of a step is not to be trusted
    except CannotMeasure as obstacle:
        state, reason = State.SKIPPED, str(obstacle)
    except Exception as error:
        state, reason = State.FAILED, last_lines(error)
    took_s = context.clock() - began_s
    return SectionRecord(section.name, section.title, state, tuple(rows), took_s, reason)


def last_lines(error: Exception) -> str:
    """Return what went wrong and where: the last lines of the traceback."""
    lines = "".join(traceback.format_exception(error)).strip().splitlines()
    return "\n".join(lines[-TRACE_LINES:])


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise OutOfTime in this thread when so many seconds have passed; the main thread only.

    A timer that somebody else has set continues afterwards.
    """

    def ring(number: int, frame: FrameType | None) -> None:
        raise OutOfTime

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGALRM, ring)
    began_s = time.monotonic()
    others_s, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if others_s:
            left_s = others_s - (time.monotonic() - began_s)
            signal.setitimer(signal.ITIMER_REAL, max(left_s, 1e-3))
