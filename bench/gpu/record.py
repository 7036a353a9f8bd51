"""What a section has measured: rows with their limits and targets, or why there are none."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal


@dataclass(frozen=True, slots=True)
class Target:
    """A bound, on what was measured or on its share of the limit."""

    sign: Literal["≥", "≤"]
    value: float
    of: Literal["measured", "ratio"] = "measured"

    def __str__(self) -> str:
        """Return the text for a table."""
        subject = "ratio " if self.of == "ratio" else ""
        return f"{subject}{self.sign} {self.value:g}"

    def is_met_by(self, value: float) -> bool:
        """Whether a number is on the right side."""
        return value >= self.value if self.sign == "≥" else value <= self.value


@dataclass(frozen=True, slots=True)
class Row:
    """One number. `ratio` is the share of the limit that was reached, 1 being all of it."""

    metric: str
    measured: float | None  # None: it could not be; `note` has the reason
    unit: str
    limit: float | None = None  # what the machine allows, in the same unit
    ratio: float | None = None
    target: Target | None = None
    peers: Mapping[str, float] = field(default_factory=dict)  # for comparison, in the same unit
    note: str = ""

    @classmethod
    def of_time(
        cls,
        metric: str,
        measured: float,
        unit: str,
        limit: float,
        target: Target | None = None,
        note: str = "",
    ) -> "Row":
        """Build the row of a time and of the shortest one that the machine allows."""
        return cls(metric, measured, unit, limit, limit / measured, target, note=note)

    @property
    def is_met(self) -> bool | None:
        """Whether the target is reached; None without one."""
        if self.target is None:
            return None
        value = self.measured if self.target.of == "measured" else self.ratio
        return None if value is None else self.target.is_met_by(value)


class CannotMeasure(Exception):
    """A section cannot run on this machine; the text has the reason."""


class State(StrEnum):
    """How a section ended."""

    DONE = "done"
    CUT = "cut"  # out of time; the rows so far are good
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class SectionRecord:
    """One section, as it ended."""

    name: str
    title: str
    state: State
    rows: tuple[Row, ...] = ()
    seconds: float = 0.0
    reason: str = ""  # why it is not done
