"""Trials with arms on separate pods of an invented fleet; half of the pods run the candidate."""

import numpy as np
from numpy.typing import NDArray

from rollout.environment import SLOT_S, draw_environment
from rollout.requests import STRATA, Requests, draw_arrivals, serve
from rollout.traffic import FIRST_BOUNDS_S
from rollout.trials import ENDS, End
from rollout.worlds import Candidate, World
from specdecode_operator.judge.evidence import ArmEvidence, Latencies, RequestSums, Role, Stratum
from specdecode_operator.judge.guard import Aim, Guard
from specdecode_operator.judge.judge import judge_pods
from specdecode_operator.judge.judgement import Verdict
from specdecode_operator.judge.recording import close_window
from specdecode_operator.judge.trial_evidence import PodEvidence

HOURS_S, WINDOWS, SLOTS_OF_WINDOW = 7200.0, 24, 60
FIRST_LOOKS = (3, 6, 12)
"""Slots of the first window after which its sums are looked at, for alarms."""


def run_on_pods(
    world: World, candidate: Candidate, pods: int, aim: Aim, rng: np.random.Generator
) -> End:
    """Draw and judge a trial until its end; looks at window ends, and more in the first window."""
    guard = Guard(aim=aim, max_duration_s=HOURS_S)
    around = draw_environment(world, pods, HOURS_S, rng)
    evidence, served = PodEvidence(), 0
    for number in range(WINDOWS):
        start = number * SLOTS_OF_WINDOW
        ends = (*FIRST_LOOKS, SLOTS_OF_WINDOW) if number == 0 else (SLOTS_OF_WINDOW,)
        arrivals = draw_arrivals(around, slice(start, start + SLOTS_OF_WINDOW), rng)
        is_new = arrivals.pod >= pods // 2
        seen = serve(world, candidate, around, arrivals, is_new, arrivals.pod, rng)
        for end in ends:
            elapsed_s = (start + end) * SLOT_S
            known = seen.where(arrivals.at_s < elapsed_s)
            looked = close_window(evidence, number, _arms(known, pods))
            judgement = judge_pods(looked, guard, elapsed_s)
            if judgement.verdict in ENDS:
                requests = served + int(known.is_new.sum())
                return End(judgement.verdict, judgement.reason, elapsed_s, requests)
        evidence, served = looked, served + int(is_new.sum())
    return End(Verdict.INCONCLUSIVE, "OutOfTime", HOURS_S, served)


def _arms(seen: Requests, pods: int) -> dict[str, tuple[Role, ArmEvidence]]:
    return {
        f"pod-{pod}": (Role.CANDIDATE if pod >= pods // 2 else Role.BASELINE, arm)
        for pod, arm in enumerate(arms_of(seen, pods))
    }


def arms_of(seen: Requests, groups: int) -> list[ArmEvidence]:
    """The requests of each group as evidence."""
    rows = zip(
        sums_by_stratum(seen, groups).tolist(),
        latencies_by_group(seen, groups),
        np.bincount(seen.group, None, groups).tolist(),
        np.bincount(seen.group, seen.failed, groups).tolist(),
        strict=True,
    )
    return [
        ArmEvidence(
            strata=by_stratum(sums),
            first_token=first_token,
            answered_requests=count - failed,
            failed_requests=failed,
            pods=1,
        )
        for sums, first_token, count, failed in rows
    ]


def sums_by_stratum(seen: Requests, groups: int) -> NDArray[np.float64]:
    """The fields of `RequestSums`, [groups, strata, fields]."""
    at, cells = seen.group * len(STRATA) + seen.stratum, groups * len(STRATA)
    columns = (None, seen.tokens, seen.steps, seen.seconds)
    sums = np.stack([np.bincount(at, column, cells) for column in columns], -1)
    return np.asarray(sums.reshape(groups, len(STRATA), len(columns)), np.float64)


def by_stratum(sums: list[list[float]]) -> dict[Stratum, RequestSums]:
    """Sums of one group, [strata, fields]."""
    rows = zip(STRATA, sums, strict=True)
    return {stratum: RequestSums(*row) for stratum, row in rows if row[0]}


def latencies_by_group(seen: Requests, groups: int) -> list[Latencies]:
    """Times to first token of each group."""
    buckets = len(FIRST_BOUNDS_S) + 1
    at = seen.group * buckets + np.searchsorted(FIRST_BOUNDS_S, seen.first_s)
    counts = np.bincount(at, None, groups * buckets).astype(float).reshape(groups, buckets)
    sums_s = np.bincount(seen.group, seen.first_s, groups)
    return [
        Latencies(FIRST_BOUNDS_S, tuple(row), sum_s)
        for row, sum_s in zip(counts.tolist(), sums_s.tolist(), strict=True)
    ]
