"""The candidate against the baseline, stratum by stratum, weighted by the work in each.

A plain ratio over all requests would call a canary faster because its batches are smaller, or
because its share of easy prompts is larger.
"""

from dataclasses import dataclass

from specdecode_operator.judge.evidence import ArmEvidence, RequestSums, Stratum
from specdecode_operator.judge.ratio import LogRatio, Measure, log_ratio


@dataclass(frozen=True, slots=True)
class Cell:
    """One stratum: work of both arms, and log(candidate / baseline) where it is known."""

    stratum: Stratum
    baseline_requests: float
    candidate_requests: float
    work_s: float
    log_ratio: LogRatio | None


@dataclass(frozen=True, slots=True)
class Contrast:
    """log(candidate / baseline) over the strata that count, which hold `coverage` of the work."""

    cells: tuple[Cell, ...]
    log_ratio: LogRatio | None
    coverage: float


def contrast(
    baseline: ArmEvidence, candidate: ArmEvidence, measure: Measure, min_requests: float
) -> Contrast:
    """Compare a measure between the arms; strata below `min_requests` in an arm do not count."""
    cells = tuple(
        _cell(stratum, baseline, candidate, measure, min_requests)
        for stratum in sorted({*baseline.strata, *candidate.strata})
    )
    known = [(cell.work_s, cell.log_ratio) for cell in cells if cell.log_ratio is not None]
    work, all_work = sum(part for part, _ in known), sum(cell.work_s for cell in cells)
    if work <= 0.0:
        return Contrast(cells, None, 0.0)
    shares = [(part / work, ratio) for part, ratio in known]
    pooled = LogRatio(
        sum(share * ratio.value for share, ratio in shares),
        sum(share**2 * ratio.variance for share, ratio in shares),
    )
    return Contrast(cells, pooled, work / all_work)


def _cell(
    stratum: Stratum,
    baseline: ArmEvidence,
    candidate: ArmEvidence,
    measure: Measure,
    min_requests: float,
) -> Cell:
    old = baseline.strata.get(stratum, RequestSums())
    new = candidate.strata.get(stratum, RequestSums())
    before, after = log_ratio(measure(old)), log_ratio(measure(new))
    ratio = None
    counts = min(old.requests, new.requests) >= min_requests
    if counts and before is not None and after is not None:
        ratio = LogRatio(after.value - before.value, before.variance + after.variance)
    work = max(0.0, old.seconds) + max(0.0, new.seconds)
    return Cell(stratum, old.requests, new.requests, work, ratio)
