"""Decides on a recommendation, or why there is none yet."""

from collections.abc import Mapping
from dataclasses import dataclass

from specdecode_api.metrics import table_hash
from specdecode_api.speculation import Policy
from specdecode_api.table import TableEntry, candidates
from specdecode_operator.recommend.gain import RateEstimates, estimate, gain, interval
from specdecode_operator.recommend.pool import Pool, ValidityKey
from specdecode_operator.recommend.table import Bounds, Current, entries_of

MIN_STEPS = 500.0
"""Decode steps of a batch bucket that a recommendation for it needs."""


@dataclass(frozen=True, slots=True)
class BucketAdvice:
    """The measurements of one batch bucket, for the status."""

    bucket: int  # lower bound of the batch bucket
    decode_steps: float
    share_of_time: float
    rates: Mapping[int, float]  # tokens per second and request, by draft steps
    best: int | None  # None where the present draft steps should stay


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A table that should be faster for engines with the same `key`.

    `gain` is the expected relative increase of tokens per second over the measured batch sizes;
    `gain_low` to `gain_high` is its 90 % interval. `num_steps` are the draft steps at start that
    belong to the entries.
    """

    key: ValidityKey
    policy: Policy
    entries: Mapping[str, TableEntry]
    table_hash: str
    num_steps: int
    gain: float
    gain_low: float
    gain_high: float
    decode_steps: float
    pods: int
    buckets: tuple[BucketAdvice, ...]


@dataclass(frozen=True, slots=True)
class NotYet:
    """No recommendation: `reason` is for a condition, `message` describes what is missing."""

    reason: str
    message: str
    buckets: tuple[BucketAdvice, ...] = ()


def recommend(pool: Pool | None, current: Current, bounds: Bounds) -> Recommendation | NotYet:
    """Find the draft steps with the most tokens per second in each batch bucket.

    A bucket keeps its present draft steps if no others are better by `bounds.least_gain`, if too
    few decode steps were measured, or if the cost of others is unknown.
    """
    if pool is None or not pool.decode_steps:
        return NotYet("NoDecodeSteps", "no engine has decoded anything yet; wait for traffic")
    num_steps = sorted(bounds.prepared_steps)
    view = estimate(pool.step_totals, pool.positions, num_steps)
    measured = _decode_steps(pool)
    enough = [bucket for bucket in view.seconds if measured[bucket] >= MIN_STEPS]
    if not enough:
        return NotYet(
            "TooFewDecodeSteps",
            f"at most {max(measured.values()):.0f} decode steps were measured at similar batch "
            f"sizes; {MIN_STEPS:.0f} are needed",
            _buckets(view, measured, {}),
        )
    best = {bucket: top for bucket in enough if (top := _best(view, bucket, bounds)) is not None}
    buckets = _buckets(view, measured, best)
    if all(len(view.rates[bucket]) < 2 for bucket in enough):
        return NotYet(
            "CostsUnknown",
            f"only numSteps {_shown(view, enough)} was run at these batch sizes, so the cost of "
            "others is unknown; let policy Goodput measure it, or try other numSteps",
            buckets,
        )
    entries = entries_of(current, view.rates, best, bounds)
    name = table_hash(current.policy, entries)
    if not best or name == table_hash(current.policy, current.entries):
        return NotYet(
            "NoGain",
            f"no numSteps is better than the present ones by {bounds.least_gain:.0%} or more",
            buckets,
        )
    expected = gain(view, best)
    low, high = interval(pool, best, expected)
    return Recommendation(
        key=pool.key,
        policy=current.policy,
        entries=entries,
        table_hash=name,
        num_steps=_start(current, view, best, candidates(entries)),
        gain=expected,
        gain_low=low,
        gain_high=high,
        decode_steps=pool.decode_steps,
        pods=len(pool.pods),
        buckets=buckets,
    )


def _decode_steps(pool: Pool) -> dict[int, float]:
    found: dict[int, float] = {}
    for (bucket, _), cell in pool.step_totals.items():
        found[bucket] = found.get(bucket, 0.0) + cell.steps
    return found


def _best(view: RateEstimates, bucket: int, bounds: Bounds) -> int | None:
    """The draft steps to change to, compared with the present mean of the batch bucket."""
    rates = view.rates[bucket]
    if not rates:
        return None
    top = max(rates, key=lambda steps: rates[steps])
    now = view.tokens[bucket] / view.batch_size[bucket] / view.seconds[bucket]
    return top if rates[top] >= now * (1.0 + bounds.least_gain) else None


def _buckets(
    view: RateEstimates, measured: Mapping[int, float], best: Mapping[int, int]
) -> tuple[BucketAdvice, ...]:
    seconds = sum(view.seconds.values())
    return tuple(
        BucketAdvice(
            bucket,
            measured[bucket],
            view.seconds[bucket] / seconds,
            view.rates[bucket],
            best.get(bucket),
        )
        for bucket in sorted(view.seconds)
    )


def _shown(view: RateEstimates, buckets: list[int]) -> str:
    return ", ".join(
        map(str, sorted({steps for bucket in buckets for steps in view.rates[bucket]}))
    )


def _start(
    current: Current, view: RateEstimates, best: Mapping[int, int], allowed: tuple[int, ...]
) -> int:
    """Draft steps at start: those of the bucket that takes most time, or the nearest allowed."""
    busiest = max(view.seconds, key=lambda bucket: view.seconds[bucket])
    wanted = best.get(busiest, current.num_steps)
    return min(allowed, key=lambda steps: (abs(steps - wanted), steps))
