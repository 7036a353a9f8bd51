"""One trial in turns: calls the operator's judge at every look until it gives a verdict.

Judging at every look is slow, so looks at which no bound can have been crossed are skipped: the
bounds of pairs only move when a pair closes, and `first_shown` covers all looks at once.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from bench.simulation.trials.traffic import Arrangement, Seen, watch
from bench.simulation.trials.worlds import Candidate, World
from specdecode_operator.judge.alarms import PAIRS
from specdecode_operator.judge.effects import decode_effects, first_token_effects, share_effects
from specdecode_operator.judge.evidence import ArmEvidence
from specdecode_operator.judge.guard import FALLEN_PAIRS, Aim, Guard
from specdecode_operator.judge.guardrails import BY_PAIR
from specdecode_operator.judge.judge import judge_turns
from specdecode_operator.judge.judgement import Judgement, Verdict
from specdecode_operator.judge.randomization import centre_of, first_shown
from specdecode_operator.judge.recording import compare_with
from specdecode_operator.judge.trial_evidence import Counts, TurnEvidence
from specdecode_operator.trial.strategies.guard import RESTARTED_PAIRS

ENDS = (Verdict.PROMOTE, Verdict.ROLL_BACK, Verdict.INCONCLUSIVE)


@dataclass(frozen=True, slots=True)
class End:
    """How a trial ended, after how many seconds, and how much the candidate had served."""

    verdict: Verdict
    reason: str
    elapsed_s: float
    candidate_requests: int


@dataclass(frozen=True, slots=True)
class Look:
    """A look at a trial in turns, after so many complete pairs."""

    at_s: float
    pairs: int
    served: int
    open: Counts = ()


def run_in_turns(
    world: World,
    candidate: Candidate,
    plan: Arrangement,
    aim: Aim,
    rng: np.random.Generator,
    history: ArmEvidence | None = None,
) -> End:
    """Draw and judge a trial in turns until its end; `history`: of the baseline, by restart."""
    fallen = RESTARTED_PAIRS if plan.is_restart else FALLEN_PAIRS
    guard = Guard(aim=aim, max_duration_s=plan.hours_s, fallen_pairs=fallen)
    judged = 0
    for seen in watch(world, candidate, plan, rng):
        if history is not None:
            seen = replace(seen, evidence=compare_with(seen.evidence, history))
        for look in looks(seen, guard, judged):
            judgement = judge_at(seen, guard, look)
            if judgement.verdict in ENDS:
                return End(judgement.verdict, judgement.reason, look.at_s, look.served)
        judged = len(seen.evidence.pairs)
    return End(Verdict.INCONCLUSIVE, "OutOfTime", plan.hours_s, int(seen.served[-1]))


def judge_at(seen: Seen, guard: Guard, look: Look) -> Judgement:
    """Judge what is known at a look."""
    pairs = seen.evidence.pairs[: look.pairs]
    evidence = replace(seen.evidence, pairs=pairs, open=look.open)
    return judge_turns(evidence, guard, min(look.at_s, guard.max_duration_s - 1.0))


def looks(seen: Seen, guard: Guard, after: int = 0) -> Iterator[Look]:
    """Looks at which a verdict is possible, from those that complete pair `after` + 1 on."""
    evidence = seen.evidence
    soonest, futile = _soonest(seen, guard)
    effects = decode_effects(evidence).shifted(0.0)
    known = _known(evidence)
    for pairs in range(after + 1, len(evidence.pairs) + 1):
        for each in seen.open_pairs:
            if each.pair == pairs - 1:
                yield Look(each.at_s, each.pair, each.served, each.counts)
        is_due = pairs >= soonest
        if not is_due and pairs >= futile:
            is_due = -math.expm1(centre_of(effects[: known[pairs]])) > -0.25 * guard.margin
        if pairs <= PAIRS or is_due:
            yield Look(float(seen.pair_ends_s[pairs - 1]), pairs, int(seen.served[pairs - 1]))


def _soonest(seen: Seen, guard: Guard) -> tuple[float, float]:
    """Pairs after which a loss or a gain can be shown, and after which a gain is out of reach.

    Pairs that are too small have no effect, so these numbers are at most too low.
    """
    evidence = seen.evidence
    effects = decode_effects(evidence)
    worst = 0.0 if guard.aim is Aim.GAIN else math.log1p(guard.margin)
    loss, win = guard.loss_alpha, guard.win_alpha
    first = first_token_effects(evidence).shifted(math.log1p(guard.first_token_margin))
    rail = guard.rail_alpha / len(BY_PAIR)
    soon = int(np.searchsorted(seen.pair_ends_s, guard.min_duration_s)) + 1
    floor = float(max(guard.min_pairs, soon))
    ends = [
        _reached(effects.shifted(worst), loss),
        _reached(first, loss),
        max(
            _reached(_negative(effects.shifted(worst)), win),
            _reached(_negative(first), win),
            floor,
        ),
        *(_reached(share_effects(evidence.pairs, each.part, each.whole), rail) for each in BY_PAIR),
    ]
    if guard.aim is Aim.NO_LOSS:
        return min(ends), math.inf
    futile = _reached(effects.shifted(math.log1p(-guard.min_gain)), loss)
    return min(ends), max(futile, floor)


def _known(evidence: TurnEvidence) -> list[int]:
    """How many of the first 0, 1, 2, … pairs have an effect."""
    alone = (replace(evidence, pairs=(pair,)) for pair in evidence.pairs)
    return [0, *accumulate(len(decode_effects(each).pairs) for each in alone)]


def _reached(effects: list[float], alpha: float) -> float:
    """Pairs after which the effects are shown to be above 0; infinity: never."""
    return first_shown(effects, alpha) or math.inf


def _negative(effects: list[float]) -> list[float]:
    return [-effect for effect in effects]
