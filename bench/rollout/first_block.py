"""The candidate's first block of a switchback by restart, until its alarm or until it counts.

The pods restart one after the other, and each answers requests of the candidate from its start on.
What the pods answered before, for `BEFORE_S`, is the baseline. Looks are a slot apart.
"""

import numpy as np

from rollout.environment import SLOT_S, draw_environment
from rollout.pods import arm_of
from rollout.requests import draw_arrivals, serve
from rollout.traffic import Arrangement
from rollout.trials import End
from rollout.worlds import Candidate, World
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
    seen = serve(world, candidate, around, arrivals, is_new, arrivals.pod, rng)
    guard = Guard(aim=aim, max_duration_s=plan.hours_s, fallen_pairs=RESTARTED_PAIRS)
    before = arm_of(seen.where(arrivals.at_s < BEFORE_S))
    for at_s in np.arange(BEFORE_S + start_s, BEFORE_S + length_s, SLOT_S) + SLOT_S:
        is_known = is_new & (arrivals.at_s < at_s)
        pair = comparable(before, [arm_of(seen.where(is_known))])
        judgement = judge_early(pair, guard, at_s - BEFORE_S)
        if judgement.reason == EARLY:
            return End(Verdict.ROLL_BACK, EARLY, at_s - BEFORE_S, int(is_known.sum()))
    return None
