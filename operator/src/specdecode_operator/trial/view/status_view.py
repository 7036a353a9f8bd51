"""Trials in the status of a SpecDecodeDeployment: what is in force, costs, the latest."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from specdecode_api.v1alpha1.rollout_status import MAX_PROMOTIONS, MAX_SPENT
from specdecode_operator.judge.alpha_budget import spend
from specdecode_operator.judge.judgement import Verdict
from specdecode_operator.trial.record.record import EndedTrial, Record
from specdecode_operator.trial.record.state import Origin, Target, Trial
from specdecode_operator.trial.steps.exploration import recent, rest_after_s, share
from specdecode_operator.trial.steps.finish import timestamp
from specdecode_operator.trial.steps.learning import steps_of
from specdecode_operator.trial.steps.machine import Step

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TrialsView:
    """Parts of the status. The state of trials is in the first two; see `stored`."""

    effective: Document | None = None
    exploration: Document | None = None
    active_trial: str | None = None
    """SpecDecodeTrial that runs."""
    last_trial: Document | None = None


NO_VIEW = TrialsView()


def view(step: Step, previous: Mapping[str, Any], now_s: float, revision: str) -> TrialsView:
    """Return the parts of the status about trials.

    Args:
        previous: the status before; empty where there was none.
        now_s: seconds since 1970.
        revision: name of the ControllerRevision in force; empty where there is none.
    """
    record = step.record
    before: Mapping[str, Any] = previous.get("effective") or {}
    return TrialsView(
        effective=_effective(step, before, revision),
        exploration=_exploration(step, now_s),
        active_trial=record.trial.name if record.trial else None,
        last_trial=_last(record.history[0]) if record.history else None,
    )


def _last(ended: EndedTrial) -> Document:
    return {
        "name": ended.name,
        "id": ended.id,
        "origin": ended.origin,
        "verdict": ended.verdict,
        "reason": ended.reason,
        "endedAt": ended.status["endedAt"],
    }


def _effective(step: Step, before: Mapping[str, Any], revision: str) -> Document | None:
    record, now = step.record, step.decided
    if record.accepted is None and now.tuned is None and not record.promoted_by and not revision:
        return None
    found: Document = {
        "revision": revision,
        "configHash": now.built.config_hash,
        "tableHash": now.built.arm.table_hash,
        "reason": _reason(step),
        "message": _why(step, before, revision)[:1024],
        "trial": record.promoted_by,
        "overrides": [
            {"field": each.field, "specHash": each.spec_hash} for each in record.overrides
        ],
    }
    if tuned := now.tuned:
        base = tuned.base
        found |= {
            "table": [each.model_dump(by_alias=True) for each in steps_of(tuned.table)],
            "origin": tuned.origin.value,
            "tableFor": {"configHash": base.config_hash, "tableHash": base.table_hash},
        }
    return {name: value for name, value in found.items() if value or name == "message"}


def _exploration(step: Step, now_s: float) -> Document | None:
    record, spec = step.record, step.now.resource.spec
    spent, budget = recent(record.spent, now_s), record.alpha_budget
    if spec.rollout.mode != "Auto" and not spent and not budget.trials:
        return None
    rest_ends_s = record.ended_s + rest_after_s(record, spec.rollout)
    found: Document = {
        "trialsToday": len(spent),
        "candidateShare": f"{share(spent, spec, now_s):.2%}",
        "alphaBudget": f"{spend(budget).alpha:.4f}",
        "trials": budget.trials,
        "inconclusive": record.inconclusive,
    }
    if record.ended_s and rest_ends_s > now_s:
        found["notBefore"] = timestamp(rest_ends_s)
    if budget.promotions:
        found["promotions"] = list(budget.promotions[-MAX_PROMOTIONS:])
    if record.spent:
        found["spent"] = [
            {
                "startedAt": timestamp(each.started_s),
                "candidatePodSeconds": f"{each.candidate_pod_s:.3f}",
                "origin": each.origin.value,
            }
            for each in record.spent[-MAX_SPENT:]
        ]
    return found


def promoted_fields(record: Record) -> Iterator[str]:
    """Fields of the spec in whose place a promoted value is in force."""
    yield from (each.field for each in record.overrides)
    if record.tuned is not None and record.tuned.origin is not Origin.EDIT:
        yield "speculation.adaptive.batchSizes"


def overridden_message(step: Step, revision: str) -> str:
    """Message of condition SpecOverridden; empty where the spec's own values are in force."""
    fields = ", ".join(promoted_fields(step.record))
    if not fields:
        return ""
    return (
        f"a promotion is in force in place of {fields} (ControllerRevision {revision}); "
        f"`kubectl specdecode adopt {step.now.resource.name}` prints the patch that writes it into "
        "the spec; an edit of such a field ends its override"
    )


def _reason(step: Step) -> Literal["FollowsSpec", "Promoted", "Guarded"]:
    if step.pending is not None:
        return "Guarded"
    return "Promoted" if any(promoted_fields(step.record)) else "FollowsSpec"


def _why(step: Step, before: Mapping[str, Any], revision: str) -> str:
    if step.notice:
        return step.notice
    if step.pending is not None:
        return why_pending(step.record, step.pending, step.refusal)
    tuned = step.decided.tuned
    if tuned is not None and tuned.origin is Origin.RECOMMENDATION:
        return (
            "mode Auto has put a better table in force; write it into the spec to keep it, "
            "or change the spec's table to leave it"
        )
    if message := overridden_message(step, revision):
        return message
    if tuned is not None:
        return "the table of the spec is in force without a restart of the pods"
    is_same = before.get("revision") == revision and before.get("reason") == "FollowsSpec"
    return str(before.get("message", "")) if is_same else ""


def why_pending(record: Record, pending: Target, refusal: str = "") -> str:
    """Why a guarded spec is not in force."""
    trial = record.trial
    if refusal:
        return f"the spec ({pending.id}) cannot be tried: {refusal}"
    if trial is not None and trial.target.id == pending.id:
        return f"the spec ({pending.id}) is being tried"
    if trial is not None:
        return f"the spec ({pending.id}) waits for the end of trial {trial.name}"
    ended = record.ending_of(pending.id)
    if ended is None:
        return f"the spec ({pending.id}) is about to be tried"
    return (
        f"the spec ({pending.id}) was tried and not taken: {ended.verdict}, {ended.message}; "
        f"change it, or `kubectl specdecode trial promote {ended.name}` to take it all the same"
    )


def health(trial: Trial) -> tuple[bool | None, str, str]:
    """Status, reason and message of the condition of a trial that runs."""
    if trial.outcome is not None:
        is_good = trial.outcome.end == "Promoted"
        word = {"Promoted": "Promoted", "RolledBack": "Regressed"}.get(trial.outcome.end)
        return is_good, word or "Inconclusive", trial.outcome.message
    judgement = trial.judgement
    if judgement is None or judgement.verdict is Verdict.NO_DATA:
        has_silence = "does not answer" in trial.blocked_by
        reason = "MetricsUnavailable" if has_silence else "InsufficientSamples"
        return (
            None,
            reason,
            trial.blocked_by or (judgement.message if judgement else "nothing is measured yet"),
        )
    if judgement.reason in ("TooFewRequests", "TooFewPairs", "TooLittleCovered", "TooSoon"):
        return None, "InsufficientSamples", judgement.message
    return True, "NoRegression", judgement.message
