"""The two doors of the judge: arms that take turns on the same pods, and arms on separate pods.

In turns every verdict is drawn from pairs of turns and rests on their random order (`turns`,
`randomization`); only failures that no load explains and factors of two (`alarms`) are quicker.
On separate pods nothing is randomized: the pod is the unit, and fewer than five pods per arm
decide nothing (`separate_pods`).
"""

import math
from functools import lru_cache

from specdecode_operator.judge.alarms import find_alarm
from specdecode_operator.judge.effects import PairEffects, decode_effects, first_token_effects
from specdecode_operator.judge.guard import Aim, Guard
from specdecode_operator.judge.guardrails import certain_rails, rails_by_pair
from specdecode_operator.judge.judgement import (
    Findings,
    Interval,
    Judgement,
    compare_strata,
    conclude,
    request_counts,
    unmet_floors,
)
from specdecode_operator.judge.randomization import (
    centre_of,
    lower_bound,
    upper_bound,
)
from specdecode_operator.judge.separate_pods import find_by_pods
from specdecode_operator.judge.trial_evidence import (
    PodEvidence,
    TurnEvidence,
    add_counts,
)

_INTERVALS = 512
"""Latest ones that are kept: a pair is looked at several times before the next one is complete."""


def judge_turns(evidence: TurnEvidence, guard: Guard, elapsed_s: float) -> Judgement:
    """Judge arms that take turns, from complete pairs; may be called at any moment.

    Failures count in the running pair and in abandoned ones as well.
    """
    compared = add_counts(*evidence.pairs)
    everything = add_counts(compared, evidence.open, evidence.abandoned)
    effects = decode_effects(evidence)
    first_tokens = first_token_effects(evidence)
    strata, coverage = compare_strata(evidence.strata, compared, guard)
    alarm = find_alarm(
        evidence.pairs, evidence.open, evidence.strata, guard.fallen_pairs, evidence.before
    )
    baseline, candidate = request_counts(everything, len(evidence.strata))
    found = Findings(
        baseline_requests=baseline,
        candidate_requests=candidate,
        gain=_interval(effects, guard, _gain_limits(guard)),
        first_token=_interval(first_tokens, guard, (math.log1p(guard.first_token_margin),)),
        has_first_token=bool(first_tokens.pairs),
        alarm=alarm,
        rails=(*certain_rails(everything, guard), *rails_by_pair(evidence.pairs, compared, guard)),
        unmet=(
            *_missing_pairs(len(effects.pairs), guard),
            *unmet_floors(min(request_counts(compared, len(strata))), coverage, guard, elapsed_s),
        ),
        strata=strata,
        coverage=coverage,
        pairs=len(effects.pairs),
        elapsed_s=elapsed_s,
    )
    return conclude(found, guard)


def judge_pods(evidence: PodEvidence, guard: Guard, elapsed_s: float) -> Judgement:
    """Judge arms on separate pods, at the window borders that `separate_pods` names.

    Raises nothing: an arm with too few pods is `Inconclusive/TooFewPods` after `min_duration_s`,
    unless something is certainly broken before.
    """
    found = find_by_pods(evidence, guard, elapsed_s)
    return conclude(found, guard)


def _gain_limits(guard: Guard) -> tuple[float, ...]:
    """Effects that verdicts compare the bounds of the gain with."""
    if guard.aim is Aim.NO_LOSS:
        return (math.log1p(guard.margin),)
    return (0.0, math.log1p(-guard.min_gain))


@lru_cache(maxsize=_INTERVALS)
def _interval(effects: PairEffects, guard: Guard, limits: tuple[float, ...]) -> Interval | None:
    """The gain with its bounds; None without pairs."""
    if not effects.pairs:
        return None
    centre = centre_of(effects.shifted(0.0))
    high = upper_bound(effects.shifted, centre, guard.win_alpha, limits)
    low = lower_bound(effects.shifted, centre, guard.loss_alpha, limits)
    return Interval.of_log_ratio(centre, low, high)


def _missing_pairs(count: int, guard: Guard) -> tuple[tuple[str, str], ...]:
    if count >= guard.min_pairs:
        return ()
    return (("TooFewPairs", f"{count} of {guard.min_pairs} pairs of turns"),)
