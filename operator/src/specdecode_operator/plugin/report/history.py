"""What the engines of a resource did over time, whatever it was read from. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

from specdecode_api.metrics import BATCH_BUCKETS, MetricSpec, speculation
from specdecode_api.v1alpha1.activity import Activity
from specdecode_operator.fleet.exposition import Samples
from specdecode_operator.fleet.reading import PositionTotals
from specdecode_operator.status.activity import PERIOD_S

Values = tuple[float | None, ...]
"""A value per period; None where there was no work, or where nothing was read."""

Positions = Mapping[tuple[int, int], PositionTotals]
"""Totals by (batch bucket, draft position)."""


@dataclass(frozen=True, slots=True)
class WorkHistory:
    """Work by periods, the oldest first; every tuple has one value per period."""

    source: str
    ends: tuple[datetime, ...] = ()
    tokens_per_s: Values = ()
    accept_length: Values = ()
    draft_steps: Mapping[int, Values] = field(default_factory=lambda: MappingProxyType({}))
    """Mean draft steps by batch bucket."""
    mean_draft_steps: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    """Mean over all periods."""


@dataclass(frozen=True, slots=True)
class EngineTotals:
    """Counters of all engines, added up."""

    source: str
    steps: Mapping[tuple[int, int], float] = field(default_factory=lambda: MappingProxyType({}))
    """Decode steps by (batch bucket, draft steps)."""
    positions: Positions = field(default_factory=lambda: MappingProxyType({}))


READ = frozenset(
    each.sample
    for each in (
        speculation.BUCKET_STEPS,
        speculation.POSITION_REACHED,
        speculation.POSITION_ACCEPTED,
    )
)
"""Samples of an engine that `engine_totals` adds up."""


def from_activity(status: Mapping[str, Any]) -> WorkHistory | None:
    """Read `status.activity`; None where it is absent, or of another release."""
    try:
        known = Activity.from_resource(status.get("activity") or {})
        until = datetime.fromisoformat(known.until)
    except ValueError:
        return None
    tokens: Values = tuple(float(each) for each in known.tokens_per_second)
    accept: Values = tuple(each / 100 or None for each in known.accept_length_hundredths)
    count = min(len(tokens), len(accept))
    if not count:
        return None
    steps: dict[int, Values] = {
        each.from_: _padded([t / 10 if t >= 0 else None for t in each.tenths], count)
        for each in known.draft_steps
    }
    return WorkHistory(
        source="status.activity",
        ends=period_ends(until, PERIOD_S, count),
        tokens_per_s=tokens[-count:],
        accept_length=accept[-count:],
        draft_steps=steps,
        mean_draft_steps={at: value for at in steps if (value := mean(steps[at])) is not None},
    )


def period_ends(until: datetime, period_s: float, count: int) -> tuple[datetime, ...]:
    """Ends of `count` periods in UTC, the last of which is `until`."""
    last = until.astimezone(UTC) if until.tzinfo else until.replace(tzinfo=UTC)
    return tuple(last - timedelta(seconds=period_s * back) for back in range(count - 1, -1, -1))


def engine_totals(source: str, engines: Iterable[Samples]) -> EngineTotals:
    """Add up the counters of engines; series with unreadable labels or values are left out."""
    found = list(engines)
    reached = _sums(found, speculation.POSITION_REACHED, speculation.POSITION)
    accepted = _sums(found, speculation.POSITION_ACCEPTED, speculation.POSITION)
    return EngineTotals(
        source,
        _sums(found, speculation.BUCKET_STEPS, speculation.STEPS),
        {key: PositionTotals(reached[key], accepted.get(key, 0.0)) for key in reached},
    )


def mean_steps(steps: Mapping[tuple[int, int], float]) -> dict[int, float]:
    """Mean draft steps by batch bucket, weighted with decode steps."""
    means = {}
    for bucket in sorted({at for at, _ in steps}):
        here = {num_steps: number for (at, num_steps), number in steps.items() if at == bucket}
        if (total := sum(here.values())) > 0.0:
            means[bucket] = sum(num_steps * number for num_steps, number in here.items()) / total
    return means


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of what is known; None without any."""
    known = [each for each in values if each is not None and math.isfinite(each)]
    return sum(known) / len(known) if known else None


def bucket_name(bucket: int) -> str:
    """Batch sizes of a bucket, such as 4–7."""
    if bucket not in BATCH_BUCKETS:
        return f"{bucket}+"
    index = BATCH_BUCKETS.index(bucket) + 1
    if index == len(BATCH_BUCKETS):
        return f"{bucket}+"
    end = BATCH_BUCKETS[index] - 1
    return str(bucket) if end == bucket else f"{bucket}–{end}"


def key_of(labels: Mapping[str, str], label: str) -> tuple[int, int] | None:
    """Batch bucket and another label as numbers; None where one is missing or not a number."""
    try:
        return int(labels[speculation.BATCH_BUCKET]), int(labels[label])
    except (KeyError, ValueError):
        return None


def finite(text: object) -> float | None:
    """A finite number that a text contains; None without one."""
    try:
        value = float(str(text).removesuffix("%"))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _sums(
    engines: Iterable[Samples], metric: MetricSpec, label: str
) -> dict[tuple[int, int], float]:
    sums: dict[tuple[int, int], float] = {}
    for samples in engines:
        for sample in samples.get(metric.sample, ()):
            key = key_of(sample.labels, label)
            if key is not None and math.isfinite(sample.value):
                sums[key] = sums.get(key, 0.0) + sample.value
    return sums


def _padded(values: Sequence[float | None], count: int) -> Values:
    """The latest `count` values; what is missing at the beginning is unknown."""
    kept = values[-count:]
    return (*(None,) * (count - len(kept)), *kept)
