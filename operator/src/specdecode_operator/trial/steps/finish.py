"""The end of a trial: what becomes of the record, and the last status of its SpecDecodeTrial."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from specdecode_operator.judge.alpha_budget import earn
from specdecode_operator.judge.evidence import ArmKey
from specdecode_operator.judge.guard import Guard
from specdecode_operator.judge.judgement import Judgement
from specdecode_operator.objects.parts import described
from specdecode_operator.objects.resource import ResourceError
from specdecode_operator.trial.record import verdict_record
from specdecode_operator.trial.record.configuration import accepted_part
from specdecode_operator.trial.record.overrides import merged
from specdecode_operator.trial.record.record import EndedTrial, Record, Tuned
from specdecode_operator.trial.record.state import (
    NO_HALF,
    End,
    Origin,
    Phase,
    Target,
    Trial,
    TrialOutcome,
)
from specdecode_operator.trial.record.stored import KEPT_TRIALS
from specdecode_operator.trial.steps.exploration import settle
from specdecode_operator.trial.strategies.arms import arm_shown, arms, observed


def close(record: Record, trial: Trial, guard: Guard, now_s: float) -> Record:
    """Leave a trial that has settled: it goes into the history."""
    ended = ended_trial(trial, guard, now_s)
    is_own = trial.origin is Origin.RECOMMENDATION and ended.verdict == End.INCONCLUSIVE
    return replace(
        remembered(record, ended),
        trial=None,
        inconclusive=record.inconclusive + 1 if is_own else 0,
        spent=settle(record.spent, trial, now_s, guard.max_duration_s),
    )


def remembered(record: Record, ended: EndedTrial) -> Record:
    """The record with a trial that has ended, or has ended in another way than before."""
    others = [each for each in record.history if each.name != ended.name]
    return replace(record, history=(ended, *others)[:KEPT_TRIALS])


def cut_short(record: Record, trial: Trial, error: Exception, now_s: float) -> Record:
    """End a trial that cannot be continued, at once: the configuration in force serves.

    Its evidence is left out, since writing it may be what fails. Its cost stays the largest that it
    could have had.
    """
    is_known = isinstance(error, ResourceError)
    message = f"the trial cannot be continued: {described(error)}; create another SpecDecodeTrial"
    status = {
        "phase": "Ended",
        "strategy": trial.kind.value,
        "startedAt": timestamp(trial.started_s),
        "endedAt": timestamp(now_s),
        "verdict": End.ABORTED.value,
        "reason": "InvalidCandidate" if is_known else "InternalError",
        "message": message[:1024],
    }
    ended = EndedTrial(trial.name, trial.target.id, trial.origin.value, status)
    return replace(remembered(record, ended), trial=None)


def rule(record: Record, trial: Trial, outcome: TrialOutcome, base: ArmKey, now_s: float) -> Record:
    """Carry out a verdict; what was promoted counts from now on, whatever comes.

    Args:
        base: the configuration in force, without a tuned table.
    """
    is_promoted = outcome.end is End.PROMOTED
    ending = replace(
        trial,
        phase=Phase.PROMOTING if is_promoted else Phase.ROLLING_BACK,
        since_s=now_s,
        progress_s=now_s,
        outcome=outcome,
        is_paused=False,
        blocked_by="",
        evidence=observed(trial),
        first_half=NO_HALF,
        open=NO_HALF,
    )
    record = replace(record, trial=ending)
    if not is_promoted:
        return record
    budget = record.alpha_budget
    # A budget that was lost with the status has no trial that could earn.
    if trial.origin is Origin.RECOMMENDATION and budget.trials not in (0, *budget.promotions):
        record = replace(record, alpha_budget=earn(budget))
    return promoted(record, trial.target, trial.origin, base, trial.name)


def promoted(record: Record, target: Target, origin: Origin, base: ArmKey, name: str) -> Record:
    """Put a target in force.

    Args:
        name: its SpecDecodeTrial; empty where the target is an edit that was not tried.
    """
    record = replace(record, promoted_by=name)
    if target.table is not None:
        return replace(record, tuned=Tuned(target.table, base, origin))
    accepted = accepted_part(target.spec or {})
    overrides = merged(record.overrides, target.overrides)
    return replace(record, accepted=accepted, tuned=None, overrides=overrides)


def timestamp(at_s: float) -> str:
    """A time as Kubernetes writes it."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def ended_trial(trial: Trial, guard: Guard, now_s: float) -> EndedTrial:
    """The trial as it ends, evidence included."""
    outcome = trial.outcome
    assert outcome is not None, "a trial that ends has an outcome"
    status = progress(trial) | {
        "phase": "Ended",
        "endedAt": timestamp(now_s),
        "verdict": outcome.end.value,
        "reason": outcome.reason[:64],
        "message": outcome.message[:1024],
        "evidence": verdict_record.write(trial, observed(trial), guard, now_s),
    }
    return EndedTrial(trial.name, trial.target.id, trial.origin.value, status)


def progress(trial: Trial) -> dict[str, Any]:
    """The part of the status that a running trial and an ended one have."""
    old, new = arms(trial)
    gain = interval(trial.judgement)
    return {
        "strategy": trial.kind.value,
        "startedAt": timestamp(trial.started_s),
        "measuredSeconds": int(trial.measured_s),
        "pairs": trial.period.pair,
        "baseline": arm_shown(trial.old, old),
        "candidate": arm_shown(trial.target.arm, new),
    } | ({"interval": gain} if gain else {})


def interval(judgement: Judgement | None) -> Mapping[str, str] | None:
    """The gain in percent, and where it lies."""
    gain = judgement.gain if judgement else None
    if gain is None:
        return None
    return {
        "gain": f"{gain.estimate:+.1%}",
        "low": f"{gain.lower:+.1%}",
        "high": f"{gain.upper:+.1%}",
    }
