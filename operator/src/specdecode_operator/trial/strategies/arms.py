"""What was counted of the two configurations of a trial."""

from dataclasses import dataclass
from typing import Any

from specdecode_operator.judge.evidence import ArmKey, Role
from specdecode_operator.judge.trial_evidence import (
    MICRO,
    Counts,
    PodEvidence,
    TurnEvidence,
    add_counts,
    cell_of,
    row_of,
)
from specdecode_operator.trial.record.state import Trial
from specdecode_operator.trial.strategies import crossover


@dataclass(frozen=True, slots=True)
class ArmTotals:
    """Sums of one role over a trial."""

    requests: int
    tokens: int
    decode_us: int
    steps: int
    failed: int


def observed(trial: Trial) -> TurnEvidence | PodEvidence:
    """The evidence of the latest judgement."""
    if isinstance(trial.evidence, PodEvidence):
        return trial.evidence
    return crossover.observed(trial)


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


def arm_shown(arm: ArmKey, totals: ArmTotals) -> dict[str, Any]:
    """A configuration of a trial as its status shows it."""
    found: dict[str, Any] = {
        "configHash": arm.config_hash,
        "tableHash": arm.table_hash,
        "requests": totals.requests,
        "tokens": totals.tokens,
        "failed": totals.failed,
    }
    if totals.steps:
        found["acceptLength"] = f"{totals.tokens / totals.steps:.3f}"
    if totals.tokens:
        found["secondsPerToken"] = f"{totals.decode_us / MICRO / totals.tokens:.6f}"
    return found
