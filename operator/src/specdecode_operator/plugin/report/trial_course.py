"""The interval of a trial over time, by judging the beginning of its evidence again. Pure.

The bounds are valid at every moment (a confidence sequence), so those of the first pairs are what
the operator knew after them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from specdecode_operator.judge.evidence_document import BadEvidence
from specdecode_operator.judge.judgement import Judgement, StratumEffect
from specdecode_operator.judge.trial_evidence import PodEvidence, TurnEvidence
from specdecode_operator.plugin.report.history import finite
from specdecode_operator.trial.record.verdict_record import VerdictRecord, read

MAX_POINTS = 16


@dataclass(frozen=True, slots=True)
class CoursePoint:
    """The gain that was known after `count` pairs of turns or time windows, as fractions."""

    count: int
    gain: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class TrialCourse:
    """Everything that a trial's evidence shows.

    `points` may be empty; `problem` contains the reason.
    """

    unit: str = "pairs of turns"
    points: tuple[CoursePoint, ...] = ()
    strata: tuple[StratumEffect, ...] = ()
    min_gain: float | None = None
    problem: str = ""


def course(status: Mapping[str, Any]) -> TrialCourse:
    """Follow a trial's interval; from the status alone where it has no evidence."""
    evidence = status.get("evidence")
    if not evidence:
        return _latest(status, "")
    try:
        record = read(evidence)
    except BadEvidence as error:
        return _latest(status, f"The evidence cannot be read: {error}.")
    found = [(count, _judged(record, count)) for count in _counts(_length(record))]
    points = tuple(
        CoursePoint(count, each.gain.estimate, each.gain.lower, each.gain.upper)
        for count, each in found
        if each.gain is not None
    )
    if not points:
        return _latest(status, "No pair and no window was compared.")
    unit = "pairs of turns" if isinstance(record.evidence, TurnEvidence) else "time windows"
    return TrialCourse(unit, points, record.judge().strata, record.guard.min_gain)


def _latest(status: Mapping[str, Any], problem: str) -> TrialCourse:
    """The latest interval of the status as the only point."""
    interval = status.get("interval") or {}
    gain, low, high = (fraction(interval.get(name)) for name in ("gain", "low", "high"))
    if gain is None or low is None or high is None:
        return TrialCourse(problem=problem or "No gain is known.")
    count = int(finite(status.get("pairs")) or 0)
    return TrialCourse(points=(CoursePoint(count, gain, low, high),), problem=problem)


def fraction(text: object) -> float | None:
    """A fraction such as 0.031, or a percentage such as +3.1%."""
    value = finite(text)
    return value / 100 if value is not None and str(text).endswith("%") else value


def _length(record: VerdictRecord) -> int:
    """Pairs or windows of the evidence."""
    if isinstance(record.evidence, TurnEvidence):
        return len(record.evidence.pairs)
    windows = (each.number + 1 for pod in record.evidence.pods for each in pod.windows)
    return max(windows, default=0)


def _counts(length: int) -> tuple[int, ...]:
    """At most `MAX_POINTS` evenly spaced numbers up to `length`, the last one included."""
    step = max(1, -(-length // MAX_POINTS))
    return tuple(sorted(range(length, 0, -step)))


def _judged(record: VerdictRecord, count: int) -> Judgement:
    """Judge the first `count` pairs or windows."""
    return replace(record, evidence=_beginning(record.evidence, count)).judge()


def _beginning(evidence: TurnEvidence | PodEvidence, count: int) -> TurnEvidence | PodEvidence:
    if isinstance(evidence, TurnEvidence):
        return replace(evidence, pairs=evidence.pairs[:count], open=(), abandoned=())
    pods = tuple(
        replace(pod, windows=tuple(each for each in pod.windows if each.number < count))
        for pod in evidence.pods
    )
    return replace(evidence, pods=pods)
