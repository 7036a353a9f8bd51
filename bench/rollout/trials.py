"""One trial: calls the operator's judge at the end of every turn until it gives a verdict.

Judging at every look is slow, so looks at which no bound can have been crossed are skipped: the
bounds of pairs only move when a pair closes, and `evidence_path` has all looks at once.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from rollout.traffic import Seen
from rollout.worlds import HOURS_S
from specdecode_operator.judge.alarms import PAIRS
from specdecode_operator.judge.effects import decode_effects, first_token_effects, share_effects
from specdecode_operator.judge.guard import Aim, Guard
from specdecode_operator.judge.guardrails import BY_PAIR
from specdecode_operator.judge.judge import judge_turns
from specdecode_operator.judge.judgement import Verdict
from specdecode_operator.judge.randomization import evidence_path

ENDS = (Verdict.PROMOTE, Verdict.ROLL_BACK, Verdict.INCONCLUSIVE)


@dataclass(frozen=True, slots=True)
class End:
    """How a trial ended, after how many seconds, and how much the candidate had served."""

    verdict: Verdict
    reason: str
    elapsed_s: float
    candidate_requests: int


def run_trial(seen: Seen, guard: Guard) -> End:
    """Judge a trial until its end."""
    first = replace(seen.evidence, pairs=(), open=seen.first_turn)
    judgement = judge_turns(first, guard, float(seen.ends_s[0]))
    if judgement.verdict in ENDS:
        return _end(seen, judgement.verdict, judgement.reason, 0)
    for pairs in looks(seen, guard):
        turn = 2 * pairs - 1
        evidence = replace(seen.evidence, pairs=seen.evidence.pairs[:pairs])
        elapsed_s = min(float(seen.ends_s[turn]), HOURS_S - 1.0)
        judgement = judge_turns(evidence, guard, elapsed_s)
        if judgement.verdict in ENDS:
            return _end(seen, judgement.verdict, judgement.reason, turn)
    return _end(seen, Verdict.INCONCLUSIVE, "OutOfTime", len(seen.ends_s) - 1)


def looks(seen: Seen, guard: Guard) -> Iterator[int]:
    """Numbers of pairs after which a verdict is possible."""
    evidence = seen.evidence
    complete = sum(end <= HOURS_S for end in seen.ends_s[1::2].tolist())
    effects = decode_effects(evidence)
    if len(effects.pairs) != len(evidence.pairs):
        yield from range(1, complete + 1)
        return
    worst = 0.0 if guard.aim is Aim.GAIN else math.log1p(guard.margin)
    loss, win = -math.log(guard.loss_alpha), -math.log(guard.promote_alpha)
    margin = math.log1p(guard.first_token_margin)
    first = first_token_effects(evidence).shifted(margin)
    least = math.log1p(-guard.min_gain)
    rail = -math.log(guard.rail_alpha / len(BY_PAIR))
    ends = [
        _reached(effects.shifted(worst), loss),
        _reached(first, loss),
        _reached(effects.shifted(least), loss) if guard.aim is Aim.GAIN else math.inf,
        max(
            _reached([-x for x in effects.shifted(worst)], win), _reached([-x for x in first], win)
        ),
        *(_reached(share_effects(evidence.pairs, each.part, each.whole), rail) for each in BY_PAIR),
    ]
    soonest = min(ends)
    for pairs in range(1, complete + 1):
        if pairs <= PAIRS or pairs >= soonest:
            yield pairs


def _reached(effects: list[float], threshold: float) -> float:
    """Pairs after which the evidence reaches a threshold; infinity: never."""
    path = np.array(evidence_path(effects))
    found = np.flatnonzero(path >= threshold - 1e-9)
    return float(found[0] + 1) if len(found) else math.inf


def _negative(effects: list[float]) -> list[float]:
    return [-effect for effect in effects]


def _end(seen: Seen, verdict: Verdict, reason: str, turn: int) -> End:
    at = min(turn, len(seen.served) - 1)
    return End(verdict, reason, float(seen.ends_s[at]), int(seen.served[at]))
