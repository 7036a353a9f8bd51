"""The metrics of one engine that the plugin shows."""

from dataclasses import dataclass
from typing import Final

from specdecode_api.metrics import MetricSpec, core, speculation
from specdecode_operator.fleet import exposition

_TOTALS: Final = {
    "steps": (core.DECODE_STEPS, speculation.RANGE_STEPS),
    "request_steps": (core.REQUEST_STEPS, speculation.RANGE_REQUEST_STEPS),
    "drafted_tokens": (core.DRAFTED_TOKENS, speculation.RANGE_DRAFTED_TOKENS),
    "accepted_tokens": (core.ACCEPTED_TOKENS, speculation.RANGE_ACCEPTED_TOKENS),
    "emitted_tokens": (core.EMITTED_TOKENS, speculation.RANGE_EMITTED_TOKENS),
    "decode_seconds": (core.DECODE_SECONDS, speculation.RANGE_DECODE_SECONDS),
}
"""Fields of `Totals` with their metrics, of the whole engine and of a range."""

_READ: Final = frozenset(
    each.sample
    for each in (
        core.NUM_STEPS, core.RUNNING_REQUESTS, core.WAITING_REQUESTS,
        core.KV_PAGES, core.KV_WINDOW_PAGES,
        core.CACHE_QUERIED_TOKENS, core.CACHE_HIT_TOKENS,
        speculation.RANGE_NUM_STEPS, *(each for both in _TOTALS.values() for each in both),
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals of decode steps since the engine's start."""

    steps: float = 0.0
    request_steps: float = 0.0
    drafted_tokens: float = 0.0
    accepted_tokens: float = 0.0
    emitted_tokens: float = 0.0
    decode_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RangeSample:
    """A range of batch sizes: lower bound, draft steps, totals."""

    bound: int
    num_steps: int
    totals: Totals


@dataclass(frozen=True, slots=True)
class EngineSample:
    """The metrics of one engine at one time."""

    at_s: float
    num_steps: int
    running_requests: int
    waiting_requests: int
    kv_pages_free: float
    kv_pages_used: float
    window_pages_free: float  # 0 without sliding windows
    window_pages_used: float  # those reserved for running requests included
    queried_tokens: float
    hit_tokens: float
    totals: Totals
    ranges: tuple[RangeSample, ...]


def read(text: str, at_s: float) -> EngineSample:
    """Parse a response of `/metrics`.

    Raises:
        ValueError: the text is invalid, or not from an engine.
    """
    values = _values(text)
    windows = values.get(core.KV_WINDOW_PAGES.sample, {})

    def value(metric: MetricSpec, label: str = "") -> float:
        return values[metric.sample][label]

    try:
        return EngineSample(
            at_s=at_s,
            num_steps=int(value(core.NUM_STEPS)),
            running_requests=int(value(core.RUNNING_REQUESTS)),
            waiting_requests=int(value(core.WAITING_REQUESTS)),
            kv_pages_free=value(core.KV_PAGES, "free"),
            kv_pages_used=value(core.KV_PAGES, "used"),
            window_pages_free=windows.get("free", 0.0),
            window_pages_used=windows.get("used", 0.0) + windows.get("reserved", 0.0),
            queried_tokens=value(core.CACHE_QUERIED_TOKENS),
            hit_tokens=value(core.CACHE_HIT_TOKENS),
            totals=Totals(**{name: value(whole) for name, (whole, _) in _TOTALS.items()}),
            ranges=_ranges(values),
        )
    except KeyError as error:
        raise ValueError(
            f"metric {error} is missing; is this an engine of this release?"
        ) from error
    except OverflowError as error:
        raise ValueError(f"a metric has no finite value: {error}") from error


Values = dict[str, dict[str, float]]
"""Sample name to values by its only label; "" without a label."""


def _values(text: str) -> Values:
    return {
        name: {"".join(each.labels.values()): each.value for each in samples}
        for name, samples in exposition.read_lines(text, _READ).items()
    }


def _ranges(values: Values) -> tuple[RangeSample, ...]:
    found = values.get(speculation.RANGE_NUM_STEPS.sample, {})
    return tuple(
        RangeSample(int(bound), int(steps), _range_totals(values, bound))
        for bound, steps in sorted(found.items(), key=lambda item: int(item[0]))
    )


def _range_totals(values: Values, bound: str) -> Totals:
    totals = {name: values[metric.sample][bound] for name, (_, metric) in _TOTALS.items()}
    return Totals(**totals)
