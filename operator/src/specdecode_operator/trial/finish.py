"""The end of a trial: what becomes of the record, and the entry of the history."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from specdecode_api.v1alpha1 import HistoryEntry
from specdecode_api.v1alpha1.rollout_status import MAX_EVIDENCE, MAX_HISTORY, MAX_STRATA
from specdecode_operator.judge.alpha_budget import earn
from specdecode_operator.judge.evidence import ArmKey, Role, Stratum
from specdecode_operator.judge.guard import Guard
from specdecode_operator.judge.judgement import Interval, Judgement
from specdecode_operator.judge.trial_evidence import (
    MICRO,
    Counts,
    PodEvidence,
    TurnEvidence,
    add_counts,
    cell_of,
    row_of,
)
from specdecode_operator.trial import crossover, verdict_record
from specdecode_operator.trial.configuration import accepted_part
from specdecode_operator.trial.exploration import settle
from specdecode_operator.trial.record import Record, Tuned
from specdecode_operator.trial.state import NO_HALF, End, Origin, Phase, Target, Trial, TrialOutcome


def close(record: Record, trial: Trial, guard: Guard, now_s: float) -> Record:
    """Leave a trial that has settled: it goes into the history."""
    entry = history_entry(trial, guard, now_s)
    return replace(
        record,
        trial=None,
        history=(entry, *record.history)[:MAX_HISTORY],
        ended_s=now_s,
        spent=settle(record.spent, trial, now_s, guard.max_duration_s),
    )


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
        outcome=outcome,
        is_paused=False,
        hold="",
        evidence=observed(trial),
        first_half=NO_HALF,
        open=NO_HALF,
    )
    record = replace(record, trial=ending)
    if not is_promoted:
        return record
    if trial.origin is Origin.RECOMMENDATION:
        record = replace(record, alpha_budget=earn(record.alpha_budget))
    return promoted(record, trial.target, trial.origin, base)


def promoted(record: Record, target: Target, origin: Origin, base: ArmKey) -> Record:
    """Put a target in force."""
    if target.table is not None:
        return replace(record, tuned=Tuned(target.table, base, origin))
    accepted = accepted_part(target.spec or {})
    return replace(record, accepted=accepted, tuned=None, overridden=target.overrides)


def timestamp(at_s: float) -> str:
    """A time as Kubernetes writes it."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def history_entry(trial: Trial, guard: Guard, now_s: float) -> HistoryEntry:
    """The entry that a trial leaves behind, evidence included."""
    outcome = trial.outcome
    assert outcome is not None, "a trial that ends has an outcome"
    old, new = arms(trial)
    evidence = verdict_record.write(trial, observed(trial), guard, now_s)
    return HistoryEntry.model_validate(
        {
            "name": trial.name,
            "id": trial.target.id,
            "kind": trial.kind.value,
            "origin": trial.origin.value,
            "verdict": outcome.end.value,
            "reason": outcome.reason[:64],
            "message": outcome.message[:1024],
            "startedAt": timestamp(trial.started_s),
            "endedAt": timestamp(now_s),
            "measuredSeconds": int(trial.measured_s),
            "arms": [
                shown("Baseline", trial.old, old, ()),
                shown("Candidate", trial.target.arm, new, ()),
            ],
            "interval": interval(trial.judgement),
            "strata": strata(trial.judgement) or None,
            "evidence": evidence if len(evidence) <= MAX_EVIDENCE else None,
        }
    )


def observed(trial: Trial) -> TurnEvidence | PodEvidence:
    """The evidence of the latest judgement."""
    if isinstance(trial.evidence, PodEvidence):
        return trial.evidence
    return crossover.observed(trial)


@dataclass(frozen=True, slots=True)
class ArmTotals:
    """Sums of one role over a trial."""

    requests: int
    tokens: int
    decode_us: int
    steps: int
    failed: int


def arms(trial: Trial) -> tuple[ArmTotals, ArmTotals]:
    """What was counted of the old and of the new configuration."""
    evidence = observed(trial)
    counts: Counts = ()
    if isinstance(evidence, PodEvidence):
        counts = evidence.total
    else:
        for pair in (*evidence.pairs, evidence.open):
            counts = add_counts(counts, pair)
    strata = len(evidence.strata)
    return _totals(counts, strata, Role.BASELINE), _totals(counts, strata, Role.CANDIDATE)


def _totals(counts: Counts, strata: int, role: Role) -> ArmTotals:
    cells = [cell_of(counts, index, role) for index in range(strata)]
    return ArmTotals(
        requests=sum(cell.requests for cell in cells),
        tokens=sum(cell.tokens for cell in cells),
        decode_us=sum(cell.decode_us for cell in cells),
        steps=sum(cell.steps for cell in cells),
        failed=row_of(counts, role).failed,
    )


def shown(role: str, arm: ArmKey, totals: ArmTotals, pods: tuple[str, ...]) -> dict[str, object]:
    """An arm as the status shows it."""
    seconds = totals.decode_us / MICRO
    return {
        "role": role,
        "configHash": arm.config_hash,
        "tableHash": arm.table_hash,
        "pods": list(pods) or None,
        "requests": totals.requests,
        "tokens": totals.tokens,
        "acceptLength": f"{totals.tokens / totals.steps:.3f}" if totals.steps else None,
        "secondsPerToken": f"{seconds / totals.tokens:.6f}" if totals.tokens else None,
        "failed": totals.failed,
    }


def interval(judgement: Judgement | None) -> dict[str, str] | None:
    """The gain in percent, and where it lies."""
    gain: Interval | None = judgement.gain if judgement else None
    if gain is None:
        return None
    return {
        "gain": f"{gain.estimate:+.1%}",
        "low": f"{gain.lower:+.1%}",
        "high": f"{gain.upper:+.1%}",
    }


def strata(judgement: Judgement | None) -> list[dict[str, object]]:
    """Requests by kind, the commonest first."""
    effects = sorted(
        judgement.strata if judgement else (), key=lambda each: -each.candidate_requests
    )
    return [
        {
            "name": _name(each.stratum),
            "baselineRequests": int(each.baseline_requests),
            "candidateRequests": int(each.candidate_requests),
        }
        for each in effects[:MAX_STRATA]
    ]


def _name(stratum: Stratum) -> str:
    words = (stratum.sampling, stratum.grammar, stratum.prompt, stratum.label)
    return ", ".join((f"batch from {stratum.batch_size}", *filter(None, words)))[:128]
