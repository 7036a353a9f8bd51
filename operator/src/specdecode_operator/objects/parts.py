"""Parts of a reconcile, of which a failed one stops no other: it becomes a condition and a metric.

An exception in a part comes from a bug of the operator, or from what others have written. The
objects of a resource, its Service and its number of pods must not depend on it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

T = TypeVar("T")

MAX_ERROR: Final = 300
"""Characters of an error in a message."""


class Part(StrEnum):
    """What may fail on its own; the value is part of the condition's reason, and a label."""

    CONFIGURATION = "Configuration"
    TRIAL = "Trial"
    RECOMMENDATION = "Recommendation"
    DRIFT = "Drift"
    METRICS = "Metrics"


_EFFECTS: Final = {
    Part.CONFIGURATION: "pods stay as they are, the Service and replicas are kept up; undo the "
    "latest change of the spec",
    Part.TRIAL: "engines run what is in force; abort or delete the SpecDecodeTrial",
    Part.RECOMMENDATION: "status.recommendation stays as it was; rollout.mode: Manual does "
    "without it",
    Part.DRIFT: "the object is written again; look at what others have written into it",
    Part.METRICS: "what engines measured is not used; look at the log of the operator and at the "
    "/metrics of the engines",
}
"""By part: what follows from its failure, and what a person can do."""


@dataclass(frozen=True, slots=True)
class PartFailure:
    """An exception in a part."""

    part: Part
    what: str
    """What was computed, or for which object."""
    error: Exception

    @property
    def reason(self) -> str:
        """Reason of the condition."""
        return f"{self.part.value}Failed"

    @property
    def message(self) -> str:
        """What failed, what follows, and the remedy."""
        return (
            f"{self.what}: {described(self.error)}; {_EFFECTS[self.part]}, and report this with "
            "the log of the operator"
        )


class Failures:
    """Collects the failures of one reconcile."""

    def __init__(self, found: Iterable[PartFailure] = ()) -> None:
        self.found = [*found]

    def add(self, part: Part, what: str, error: Exception) -> None:
        """Note a failure."""
        self.found.append(PartFailure(part, what, error))

    def attempt(self, part: Part, what: str, compute: Callable[[], T], otherwise: T) -> T:
        """Compute a part; where that fails, note it and return `otherwise`."""
        try:
            return compute()
        except Exception as error:
            self.add(part, what, error)
            return otherwise


def described(error: Exception) -> str:
    """An error in one line: its type and message."""
    text = " ".join(str(error).split())
    shown = text if len(text) <= MAX_ERROR else f"{text[: MAX_ERROR - 1]}…"
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__


def joined(failures: Iterable[PartFailure]) -> str:
    """The messages of all failures, each once."""
    return "; ".join(dict.fromkeys(each.message for each in failures))
