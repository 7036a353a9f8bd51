"""What engines did between two samples; sums of several engines are made before dividing."""

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass

from specdecode_operator.plugin.engine_sample import EngineSample, Totals


@dataclass(frozen=True, slots=True)
class EngineRates:
    """Work in an interval; a figure is None where there was nothing to measure it by."""

    tokens_per_s: float
    steps_per_s: float
    accept_length: float | None
    """Output tokens per request and step."""
    kept: float | None
    """Share of the draft tokens that the target accepted."""
    decoding: float
    """Share of the time spent in decode steps; summed over engines."""


@dataclass(frozen=True, slots=True)
class RangeRates:
    """Rates of all engines in one range of batch sizes, and its draft steps."""

    bound: int
    end: int | None
    """The last batch size of the range; None where it has no end."""
    num_steps: tuple[int, ...]
    rates: EngineRates


Pair = tuple[EngineSample, EngineSample]
"""An engine earlier and later."""


def is_same_run(earlier: EngineSample, later: EngineSample) -> bool:
    """Whether the engine did not restart in between, which resets its counters."""
    steps = zip(astuple(earlier.totals), astuple(later.totals), strict=True)
    return later.at_s > earlier.at_s and all(after >= before for before, after in steps)


def engine_rates(pairs: Sequence[Pair]) -> EngineRates:
    """Rates of one engine, or of several together."""
    seconds = max((later.at_s - earlier.at_s for earlier, later in pairs), default=0.0)
    return _rates([(earlier.totals, later.totals) for earlier, later in pairs], seconds)


def range_rates(pairs: Sequence[Pair]) -> tuple[RangeRates, ...]:
    """Rates by range of batch sizes, over all engines."""
    seconds = max((later.at_s - earlier.at_s for earlier, later in pairs), default=0.0)
    bounds = sorted({each.bound for _, later in pairs for each in later.ranges})
    ends: list[int | None] = [*(bound - 1 for bound in bounds[1:]), None]
    found = []
    for bound, end in zip(bounds, ends, strict=False):  # without ranges there is no end either
        here = [each for _, later in pairs for each in later.ranges if each.bound == bound]
        steps = {each.num_steps for each in here}
        totals = [(_of(earlier, bound), _of(later, bound)) for earlier, later in pairs]
        found.append(RangeRates(bound, end, tuple(sorted(steps)), _rates(totals, seconds)))
    return tuple(found)


def mean_accept_length(samples: Iterable[EngineSample]) -> float | None:
    """Accept length since the engines' start."""
    every = [sample.totals for sample in samples]
    return _ratio(sum(t.emitted_tokens for t in every), sum(t.request_steps for t in every))


def hit_share(pairs: Sequence[Pair]) -> float | None:
    """Share of the interval's prompt tokens that were in the prefix cache."""
    hit = sum(later.hit_tokens - earlier.hit_tokens for earlier, later in pairs)
    queried = sum(later.queried_tokens - earlier.queried_tokens for earlier, later in pairs)
    return _ratio(hit, queried)


def _rates(pairs: Sequence[tuple[Totals, Totals]], seconds: float) -> EngineRates:
    def grown(field: str) -> float:
        return sum(float(getattr(to, field) - getattr(since, field)) for since, to in pairs)

    emitted = grown("emitted_tokens")
    return EngineRates(
        tokens_per_s=emitted / seconds if seconds else 0.0,
        steps_per_s=grown("steps") / seconds if seconds else 0.0,
        accept_length=_ratio(emitted, grown("request_steps")),
        kept=_ratio(grown("accepted_tokens"), grown("drafted_tokens")),
        decoding=grown("decode_seconds") / seconds if seconds else 0.0,
    )


def _of(sample: EngineSample, bound: int) -> Totals:
    return next((each.totals for each in sample.ranges if each.bound == bound), Totals())


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
