"""Trials with arms on separate pods of an invented fleet; half of the pods run the candidate."""

import numpy as np

from rollout.environment import SLOT_S, draw_environment
from rollout.requests import STRATA, Requests, draw_arrivals, serve
from rollout.traffic import FIRST_BOUNDS_S, latencies
from rollout.trials import ENDS, End
from rollout.worlds import Candidate, World
from specdecode_operator.judge.evidence import ArmEvidence, RequestSums, Role
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
        f"pod-{pod}": (
            Role.CANDIDATE if pod >= pods // 2 else Role.BASELINE,
            arm_of(seen.where(seen.group == pod)),
        )
        for pod in range(pods)
    }


def arm_of(seen: Requests) -> ArmEvidence:
    """These requests as evidence."""
    count = len(STRATA)
    columns = (None, seen.tokens, seen.steps, seen.seconds)
    sums = np.stack([np.bincount(seen.stratum, column, count) for column in columns], -1)
    failed = float(seen.failed.sum())
    return ArmEvidence(
        strata={
            stratum: RequestSums(*row)
            for stratum, row in zip(STRATA, sums.tolist(), strict=True)
            if row[0]
        },
        first_token=latencies(seen.first_s, FIRST_BOUNDS_S),
        answered_requests=len(seen.tokens) - failed,
        failed_requests=failed,
        pods=1,
    )
