"""The objective InterTokenLatency on simulated machines: gaps within the limit, and its cost.

Limits are multiples of the time of plain decoding in the fullest moment of a scenario, so that they
are within reach of every step.
"""

import math
from collections.abc import Iterable
from statistics import mean

from bench.simulation.policy.policies import cost_points, goodput, table
from bench.simulation.policy.profiles import Profile
from bench.simulation.policy.scenarios import Scenario
from bench.simulation.policy.world import Moment, Tally, World

FACTORS = (1.15, 1.5, 2.0, 3.0)


def measure_latency(
    profile: Profile, scenarios: Iterable[Scenario], seeds: Iterable[int]
) -> dict[str, dict[str, float]]:
    """Return the figures of a machine by the factor of the limit.

    `within` is the smallest share of gaps within the limit, over scenarios and seeds. The rate is
    that of the best draft steps within the limit, under true rates and costs.
    """
    figures = {}
    runs = [(scenario, seed) for scenario in scenarios for seed in seeds]
    free = [_serve(profile, *run, limit_s=math.inf) for run in runs]
    for factor in FACTORS:
        found = [
            _compare(profile, *run, factor, other) for run, other in zip(runs, free, strict=True)
        ]
        names = ("within", "unreachable", "rate_to_best_within", "rate_to_throughput")
        columns = dict(zip(names, zip(*found, strict=True), strict=True))
        figures[f"{factor:g}"] = {
            "within": min(columns["within"]),
            "mean_within": mean(columns["within"]),
            **{name: mean(columns[name]) for name in names[1:]},
        }
    return figures


def _compare(
    profile: Profile, scenario: Scenario, seed: int, factor: float, free: Tally
) -> tuple[float, float, float, float]:
    limit_s = factor * max(
        profile.seconds(size, 0, segment.kv_per_request * size)
        for segment in scenario.segments
        for size in segment.sizes
    )
    tally = _serve(profile, scenario, seed, limit_s)
    within = mean(gap_s <= limit_s for gap_s in tally.gaps_s)
    best = sum(_best(profile, limit_s, trace.moment) * trace.seconds for trace in tally.traces)
    return (
        within,
        tally.unreachable / len(tally.traces),
        tally.tokens / best,
        _rate(tally) / _rate(free),
    )


def _serve(profile: Profile, scenario: Scenario, seed: int, limit_s: float) -> Tally:
    policy = goodput(profile, cost_points(profile))
    policy.reload(policy.table.within(limit_s))
    return World(profile, scenario, seed).run(policy)


def _best(profile: Profile, limit_s: float, moment: Moment) -> float:
    """Tokens per second of the best candidate that takes no longer than the limit."""
    size, kv = moment.batch_size, moment.kv_tokens
    allowed = [
        steps
        for steps in table().candidates()
        if not steps or profile.seconds(size, steps, kv) <= limit_s
    ]
    return max(moment.rates[steps] for steps in allowed)


def _rate(tally: Tally) -> float:
    return tally.tokens / tally.seconds
