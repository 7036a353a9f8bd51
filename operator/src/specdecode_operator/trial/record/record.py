"""What trials keep between reconciles of a resource; `stored` reads it from the API server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from specdecode_operator.judge.alpha_budget import AlphaBudget
from specdecode_operator.judge.evidence import ArmKey
from specdecode_operator.trial.record.overrides import Override
from specdecode_operator.trial.record.state import End, Origin, Table, Trial

REJECTED = frozenset({End.ROLLED_BACK, End.INCONCLUSIVE, End.ABORTED})


@dataclass(frozen=True, slots=True)
class Tuned:
    """A table that passed a trial and is in force in place of the spec's.

    It is valid for one configuration: `base` is its hash and that of its own table.
    """

    table: Table
    base: ArmKey
    origin: Origin


@dataclass(frozen=True, slots=True)
class Spent:
    """What a trial cost, or may cost: pod-seconds on its candidate."""

    started_s: float
    candidate_pod_s: float
    origin: Origin = Origin.RECOMMENDATION


@dataclass(frozen=True, slots=True)
class EndedTrial:
    """A trial that ended."""

    name: str
    id: str
    """Of its target; empty where it had none."""
    origin: str
    status: Mapping[str, Any]
    """As in its SpecDecodeTrial."""

    @property
    def asked_by(self) -> Origin:
        """Who asked for it."""
        return Origin(self.origin)

    @property
    def verdict(self) -> str:
        """What became of it."""
        return str(self.status["verdict"])

    @property
    def reason(self) -> str:
        """The reason in one word."""
        return str(self.status.get("reason", ""))

    @property
    def message(self) -> str:
        """The reason in a sentence."""
        return str(self.status.get("message", ""))

    @property
    def ended_s(self) -> float:
        """When it ended, in seconds since 1970."""
        return seconds_of(str(self.status["endedAt"]))


@dataclass(frozen=True, slots=True)
class Record:
    """What outlives a reconcile.

    `accepted` is the part of the spec that serves; None where the spec itself counts.
    """

    accepted: Mapping[str, Any] | None = None
    tuned: Tuned | None = None
    overrides: tuple[Override, ...] = ()
    """Fields of the spec in whose place `accepted` has promoted values."""
    promoted_by: str = ""
    """SpecDecodeTrial that was promoted last."""
    trial: Trial | None = None
    history: tuple[EndedTrial, ...] = ()
    """Trials that ended, the newest first."""
    alpha_budget: AlphaBudget = field(default_factory=AlphaBudget)
    inconclusive: int = 0
    """Inconclusive trials of the operator's own in a row."""
    spent: tuple[Spent, ...] = ()
    """Trials within a day, whoever asked for them."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to keep."""
        return self == Record()

    @property
    def ended_s(self) -> float:
        """When the last trial that ran has ended; 0 if none has."""
        ran = (each.ended_s for each in self.history if each.status.get("startedAt"))
        return max(ran, default=0.0)

    def ending_of(self, target_id: str) -> EndedTrial | None:
        """How the latest trial of a target ended, if it is remembered."""
        return next((each for each in self.history if each.id == target_id), None)

    def ending_by_name(self, name: str) -> EndedTrial | None:
        """How the trial with this SpecDecodeTrial ended, if it is remembered."""
        return next((each for each in self.history if each.name == name), None)

    def is_rejected(self, target_id: str) -> bool:
        """Whether a target was tried and must not be tried again automatically."""
        ended = self.ending_of(target_id)
        return ended is not None and ended.verdict in REJECTED


def seconds_of(time: str) -> float:
    """Seconds since 1970 of a time as Kubernetes writes it."""
    return datetime.fromisoformat(time).timestamp()
