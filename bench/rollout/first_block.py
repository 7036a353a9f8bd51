"""The candidate's first block of a switchback by restart, until its alarm or until it counts.

The pods restart one after the other, and each answers requests of the candidate from its start on.
What the pods answered before, for `BEFORE_S`, is the baseline. Looks are a slot apart.
"""

from collections.abc import Iterator

import numpy as np

from rollout.environment import SLOT_S, draw_environment
from rollout.pods import by_stratum, sums_by_stratum
from rollout.requests import Requests, draw_arrivals, serve
from rollout.traffic import Arrangement
from rollout.trials import End
from rollout.worlds import Candidate, World
from specdecode_operator.judge.evidence import ArmEvidence
from specdecode_operator.judge.guard import Aim, Guard
from specdecode_operator.judge.judgement import Verdict
from specdecode_operator.trial.early_alarms import EARLY, comparable, judge_early
from specdecode_operator.trial.guard import RESTARTED_PAIRS

BEFORE_S = 1200.0


def alarm_in_first_block(
    world: World, candidate: Candidate, plan: Arrangement, aim: Aim, rng: np.random.Generator
) -> End | None:
    """The end of the trial by an alarm before the first block counts; None without one."""
    start_s = plan.block_s / 10.0
    length_s = plan.pods * start_s + plan.washout_s
    around = draw_environment(world, plan.pods, BEFORE_S + length_s, rng)
    arrivals = draw_arrivals(around, slice(0, len(around.load)), rng)
    runs_from_s = BEFORE_S + start_s * (arrivals.pod + 1.0)
    is_new = arrivals.at_s >= runs_from_s
    looks_s = np.arange(BEFORE_S + start_s, BEFORE_S + length_s, SLOT_S) + SLOT_S
    first_look = np.searchsorted(looks_s, arrivals.at_s, side="right")
    seen = serve(world, candidate, around, arrivals, is_new, first_look, rng)
    guard = Guard(aim=aim, max_duration_s=plan.hours_s, fallen_pairs=RESTARTED_PAIRS)
    (before,) = known_at_looks(seen.where(arrivals.at_s < BEFORE_S), 1)
    answered = known_at_looks(seen.where(is_new & (first_look < len(looks_s))), len(looks_s))
    for at_s, arm in zip(looks_s.tolist(), answered, strict=True):
        judgement = judge_early(comparable(before, [arm]), guard, at_s - BEFORE_S)
        if judgement.reason == EARLY:
            requests = round(sum(sums.requests for sums in arm.strata.values()))
            return End(Verdict.ROLL_BACK, EARLY, at_s - BEFORE_S, requests)
    return None


def known_at_looks(seen: Requests, looks: int) -> Iterator[ArmEvidence]:
    """What is known at each look; the group of a request is the first look that it counts at."""
    for sums in np.cumsum(sums_by_stratum(seen, looks), axis=0):
        yield ArmEvidence(strata=by_stratum(sums.tolist()))
