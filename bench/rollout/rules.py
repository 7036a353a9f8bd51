"""The rules that are compared. Each looks at a fleet's counts and says where it ended, and how."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from rollout.arrangements import SLOT_S, SLOTS
from rollout.fleet import Floats, Seen
from rollout.scrape import arm, blocks, elapsed_s
from specdecode_operator.judge.blocks import judge_blocks
from specdecode_operator.judge.guard import Guard
from specdecode_operator.judge.judge import judge
from specdecode_operator.judge.judgement import Judgement, Verdict

LOOK_SLOTS = 2
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
    pair = seen.arrangement.pair_slots
    looks = (*range(1, pair), *range(pair, SLOTS + 1, pair))
    return _first(_turns(seen, looks))


def side_by_side(seen: Seen) -> End:
    """The operator's judge over arms on pods of their own, every half minute."""
    guard = Guard()
    looks = range(1, SLOTS + 1, LOOK_SLOTS)
    return _first(
        (until, judge(arm(seen, 0, until), arm(seen, 1, until), guard, elapsed_s(until)))
        for until in looks
    )


def threshold(seen: Seen) -> End:
    """Fixed thresholds by the minute: over +3 % four times, or under -3 % ten times."""
    time = _seconds_per_token(seen)
    ratios = time[:, 1] / time[:, 0]
    failures = successes = 0
    for window, ratio in enumerate(ratios, start=1):
        failures += ratio >= 1.03
        successes += ratio <= 0.97
        if failures > FAILURES:
            return End(Verdict.ROLL_BACK, window * WINDOW_SLOTS)
        if successes >= SUCCESSES:
            return End(Verdict.PROMOTE, window * WINDOW_SLOTS)
    return End(Verdict.INCONCLUSIVE, SLOTS)


def peeking_z(seen: Seen) -> End:
    """A z-test over requests at 5 % a side, done again at every look until it shows something."""
    sums = np.cumsum(seen.sums.sum(axis=2), axis=0)  # [slots, halves, fields]
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


def _turns(seen: Seen, looks: tuple[int, ...]) -> Iterator[tuple[int, Judgement]]:
    guard = Guard()
    for until in looks:
        yield until, judge_blocks(tuple(blocks(seen, until)), guard, elapsed_s(until))


def _first(looks: Iterator[tuple[int, Judgement]]) -> End:
    for until, judgement in looks:
        if judgement.verdict in ENDS:
            return End(judgement.verdict, until, judgement.reason)
    return End(Verdict.INCONCLUSIVE, SLOTS)


def _seconds_per_token(seen: Seen) -> Floats:
    """Of every window, unstratified, [windows, halves]."""
    by_slot = seen.sums.sum(axis=2)[: SLOTS // WINDOW_SLOTS * WINDOW_SLOTS]
    windows = by_slot.reshape(-1, WINDOW_SLOTS, *by_slot.shape[1:]).sum(axis=1)
    return np.asarray(windows[..., 3] / windows[..., 1])


def _variance(sums: Floats) -> float:
    """Delta-method variance of log(seconds / tokens)."""
    count, tokens, _, seconds, tokens2, _, seconds2, _, product = sums.tolist()
    spread = seconds2 / seconds**2 - 2.0 * product / (seconds * tokens) + tokens2 / tokens**2
    return float(spread * count / (count - 1.0))
