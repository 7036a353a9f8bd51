"""The rules that are compared. Each takes a fleet's counts and returns where it ended, and how."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rollout.arrangements import SLOT_S, SLOTS
from rollout.fleet import Floats, Seen
from rollout.scrape import accumulate, arms, elapsed_s, pair_of_blocks
from specdecode_operator.judge.blocks import Block, judge_blocks
from specdecode_operator.judge.guard import Guard
from specdecode_operator.judge.judgement import Verdict
from specdecode_operator.judge.pods import judge_pods

LOOK_SLOTS = 4
WINDOW_SLOTS = 60 // SLOT_S
FAILURES, SUCCESSES = 3, 10
PEEK_Z, PEEK_REQUESTS = 1.645, 200
ENDS = (Verdict.PROMOTE, Verdict.ROLL_BACK, Verdict.INCONCLUSIVE)


@dataclass(frozen=True, slots=True)
class End:
    """How a trial ended, and before which slot."""

    verdict: Verdict
    slot: int
    reason: str = ""


Rule = Callable[[Seen], End]


def in_turns(seen: Seen) -> End:
    """The operator's judge over pairs of blocks: every slot in the first pair, then at its ends."""
    guard, pair_slots = Guard(), 2 * seen.arrangement.block_slots
    blocks: list[Block] = []
    for pair in range(SLOTS // pair_slots):
        end = pair_slots * (pair + 1)
        for until in range(end - pair_slots + 1 if pair == 0 else end, end + 1):
            now = [*blocks, *pair_of_blocks(seen, pair, until)]
            judgement = judge_blocks(now, guard, elapsed_s(until))
            if judgement.verdict in ENDS:
                return End(judgement.verdict, until, judgement.reason)
        blocks += pair_of_blocks(seen, pair, end)
    return End(Verdict.INCONCLUSIVE, SLOTS)


def side_by_side(seen: Seen) -> End:
    """The operator's judge over arms on pods of their own, every minute."""
    guard, so_far = Guard(), accumulate(seen)
    for until in range(1, SLOTS + 1, LOOK_SLOTS):
        judgement = judge_pods(*arms(so_far, until), guard, elapsed_s(until))
        if judgement.verdict in ENDS:
            return End(judgement.verdict, until, judgement.reason)
    return End(Verdict.INCONCLUSIVE, SLOTS)


def threshold(seen: Seen, window_slots: int = WINDOW_SLOTS) -> End:
    """Fixed thresholds by the minute: over +3 % four times, or under -3 % ten times."""
    time = _seconds_per_token(seen, window_slots)
    ratios = time[:, 1] / time[:, 0]
    failures = successes = 0
    for window, ratio in enumerate(ratios, start=1):
        failures += ratio >= 1.03
        successes += ratio <= 0.97
        if failures > FAILURES:
            return End(Verdict.ROLL_BACK, window * window_slots)
        if successes >= SUCCESSES:
            return End(Verdict.PROMOTE, window * window_slots)
    return End(Verdict.INCONCLUSIVE, SLOTS)


def peeking_z(seen: Seen) -> End:
    """A z-test over requests at 5 % a side, done again at every look until it shows something."""
    sums = np.cumsum(_by_arm(seen), axis=0)
    for until in range(1, SLOTS + 1, LOOK_SLOTS):
        old, new = sums[until - 1]
        if min(old[0], new[0]) < PEEK_REQUESTS:
            continue
        difference = math.log(new[3] / new[1]) - math.log(old[3] / old[1])
        z = difference / math.sqrt(_variance(old) + _variance(new))
        if z > PEEK_Z:
            return End(Verdict.ROLL_BACK, until)
        if z < -PEEK_Z and difference < math.log(0.97):
            return End(Verdict.PROMOTE, until)
    return End(Verdict.INCONCLUSIVE, SLOTS)


def _by_arm(seen: Seen) -> Floats:
    """Sums over strata, unstratified, [slots, arms, fields]."""
    is_new = seen.arrangement.candidate[..., None]
    sums = seen.sums.sum(axis=2)
    return np.stack([(sums * ~is_new).sum(axis=1), (sums * is_new).sum(axis=1)], axis=1)


def _seconds_per_token(seen: Seen, window_slots: int) -> Floats:
    """Of every window, unstratified, [windows, arms]."""
    by_slot = _by_arm(seen)[: SLOTS // window_slots * window_slots]
    windows = by_slot.reshape(-1, window_slots, *by_slot.shape[1:]).sum(axis=1)
    return np.asarray(windows[..., 3] / windows[..., 1])


def _variance(sums: Floats) -> float:
    """Delta-method variance of log(seconds / tokens)."""
    count, tokens, _, seconds, tokens2, _, seconds2, _, product = sums.tolist()
    spread = seconds2 / seconds**2 - 2.0 * product / (seconds * tokens) + tokens2 / tokens**2
    return float(spread * count / (count - 1.0))
