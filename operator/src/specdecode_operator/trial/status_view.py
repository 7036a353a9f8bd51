"""The status of trials: the one that runs, those that ended, and what is in force."""

from dataclasses import asdict, dataclass
from typing import Literal

from specdecode_api import names
from specdecode_api.v1alpha1 import (
    Effective,
    ExplorationStatus,
    HistoryEntry,
    RolloutRequest,
    TrialStatus,
)
from specdecode_api.v1alpha1.rollout_status import MAX_PODS, LastTrial
from specdecode_operator.judge.alpha_budget import spend
from specdecode_operator.judge.evidence import Role
from specdecode_operator.judge.judgement import Verdict
from specdecode_operator.observed import Observed
from specdecode_operator.trial import crossover, restarts
from specdecode_operator.trial.context import is_alive, name_of, role_of, uid_of
from specdecode_operator.trial.exploration import recent, rest_after_s, share
from specdecode_operator.trial.finish import arms, interval, shown, timestamp
from specdecode_operator.trial.learning import steps_of
from specdecode_operator.trial.machine import Step
from specdecode_operator.trial.record import Record
from specdecode_operator.trial.state import Kind, Origin, Target, Trial


@dataclass(frozen=True, slots=True)
class TrialsView:
    """Parts of the status."""

    trial: TrialStatus | None = None
    history: tuple[HistoryEntry, ...] = ()
    effective: Effective | None = None
    exploration: ExplorationStatus | None = None
    requests: tuple[RolloutRequest, ...] = ()
    active_trial: str | None = None
    """SpecDecodeTrial that runs."""
    last_trial: LastTrial | None = None


def tell(step: Step, observed: Observed, revision: str = "") -> TrialsView:
    """Return the parts of the status about trials.

    Args:
        revision: name of the ControllerRevision in force; empty where there is none.
    """
    record = step.record
    return TrialsView(
        trial=_running(record.trial, observed) if record.trial else None,
        history=record.history,
        active_trial=(record.trial.name or None) if record.trial else None,
        last_trial=_last(record),
        effective=_effective(step, revision),
        exploration=_exploration(step, observed.at.timestamp()),
        requests=tuple(
            RolloutRequest.model_validate(asdict(each)) for each in record.requests.values()
        ),
    )


def _last(record: Record) -> LastTrial | None:
    entry = next((each for each in record.history if each.name), None)
    if entry is None:
        return None
    return LastTrial(
        name=entry.name, verdict=entry.verdict, reason=entry.reason, ended_at=entry.ended_at
    )


def _running(trial: Trial, observed: Observed) -> TrialStatus:
    old, new = arms(trial)
    judgement = trial.judgement
    told = judgement.message if judgement else ""
    return TrialStatus.model_validate(
        {
            "name": trial.name,
            "id": trial.target.id,
            "kind": trial.kind.value,
            "origin": trial.origin.value,
            "phase": "Paused" if trial.is_paused else trial.phase.value,
            "startedAt": timestamp(trial.started_s),
            "measuredSeconds": int(trial.measured_s),
            "arms": [
                shown("Baseline", trial.old, old, pods_of(trial, observed, Role.BASELINE)),
                shown("Candidate", trial.target.arm, new, pods_of(trial, observed, Role.CANDIDATE)),
            ],
            "interval": interval(judgement),
            "holdReason": (trial.hold or told)[:1024],
        }
    )


def pods_of(trial: Trial, observed: Observed, role: Role) -> tuple[str, ...]:
    """Names of the pods that are in an arm now."""
    alive = [pod for pod in observed.pods if is_alive(pod)]
    if trial.restarts is not None:
        is_now = restarts.in_block(trial) and restarts.role_now(trial) is role
        found = [pod for pod in alive if is_now and restarts.is_of_block(trial, pod)]
    elif trial.kind is not Kind.CANARY:
        found = [pod for pod in alive if crossover.role_in(trial, uid_of(pod)) is role]
    elif role is Role.CANDIDATE:
        found = [pod for pod in alive if role_of(pod) == names.ROLE_CANARY]
    else:
        wanted = names.ROLE_BASELINE if trial.has_fresh_baseline else names.ROLE_STABLE
        found = [pod for pod in alive if role_of(pod) == wanted]
    return tuple(name_of(pod) for pod in found[:MAX_PODS])


def _effective(step: Step, revision: str) -> Effective | None:
    record, now = step.record, step.now
    if record.accepted is None and now.tuned is None:
        return None
    return Effective(
        revision=revision or None,
        config_hash=now.built.config_hash,
        table_hash=now.built.arm.table_hash,
        table=steps_of(now.tuned.table) if now.tuned else None,
        reason=_reason(step),
        message=_why(step)[:1024],
    )


def _exploration(step: Step, now_s: float) -> ExplorationStatus | None:
    record, spec = step.record, step.now.resource.spec
    spent = recent(record.spent, now_s)
    if spec.rollout.mode != "Auto" and not spent:
        return None
    rest_ends_s = record.ended_s + rest_after_s(record, spec.rollout)
    return ExplorationStatus(
        trials_today=len(spent),
        candidate_share=f"{share(spent, spec, now_s):.2%}",
        alpha_budget=f"{spend(record.alpha_budget).alpha:.4f}",
        not_before=timestamp(rest_ends_s) if record.ended_s and rest_ends_s > now_s else None,
    )


def _is_recommended(step: Step) -> bool:
    return step.now.tuned is not None and step.now.tuned.origin is Origin.RECOMMENDATION


def _reason(step: Step) -> Literal["FollowsSpec", "Promoted", "Guarded"]:
    if step.pending is not None:
        return "Guarded"
    return "Promoted" if _is_recommended(step) or _is_by_user(step) else "FollowsSpec"


def _is_by_user(step: Step) -> bool:
    tuned = step.now.tuned
    return bool(step.record.overridden) or (tuned is not None and tuned.origin is Origin.USER)


def _why(step: Step) -> str:
    if step.pending is not None:
        return why_pending(step.record, step.pending, step.refusal)
    if _is_recommended(step):
        return (
            "mode Auto has put a better table in force; write it into the spec to keep it, "
            "or change the spec's table to leave it"
        )
    if _is_by_user(step):
        name = step.now.resource.name
        return (
            "a trial has put another configuration in force; `kubectl specdecode adopt "
            f"{name}` prints the patch that writes it into the spec; an edit of the spec ends it"
        )
    if step.now.tuned is not None:
        return "the table of the spec is in force without a restart of the pods"
    return ""


def why_pending(record: Record, pending: Target, refusal: str = "") -> str:
    """Why a guarded spec is not in force."""
    trial = record.trial
    if refusal:
        return f"the spec ({pending.id}) cannot be tried: {refusal}"
    if trial is not None and trial.target.id == pending.id:
        return f"the spec ({pending.id}) is being tried"
    if trial is not None:
        return f"the spec ({pending.id}) waits for the end of trial {trial.target.id}"
    ended = record.ending_of(pending.id)
    if ended is None:
        return f"the spec ({pending.id}) is about to be tried"
    return (
        f"the spec ({pending.id}) was tried and not taken: {ended.verdict}, {ended.message}; "
        f"change it, or annotate {names.ANNOTATION_PROMOTE}={pending.id} to take it all the same"
    )


def health(trial: Trial) -> tuple[bool | None, str, str]:
    """Status, reason and message of the condition of a trial that runs."""
    if trial.outcome is not None:
        is_good = trial.outcome.end == "Promoted"
        word = {"Promoted": "Promoted", "RolledBack": "Regressed"}.get(trial.outcome.end)
        return is_good, word or "Inconclusive", trial.outcome.message
    told = trial.judgement
    if told is None or told.verdict is Verdict.NO_DATA:
        has_silence = "does not answer" in trial.hold
        reason = "MetricsUnavailable" if has_silence else "InsufficientSamples"
        return None, reason, trial.hold or (told.message if told else "nothing is measured yet")
    if told.reason in ("TooFewRequests", "TooFewPairs", "TooLittleCovered", "TooSoon"):
        return None, "InsufficientSamples", told.message
    return True, "NoRegression", told.message
