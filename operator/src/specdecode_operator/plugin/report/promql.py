"""Queries for the history of a resource, and what their results mean. Pure.

The series have the labels `namespace` and `deployment`, which the chart's PodMonitor for engines
sets. All queries use the step as their window, so that periods neither overlap nor leave gaps.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import BaseModel, TypeAdapter, ValidationError

from specdecode_api.metrics import MetricSpec, core, speculation
from specdecode_operator.fleet.reading import PositionTotals
from specdecode_operator.plugin.report.history import (
    EngineTotals,
    Values,
    WorkHistory,
    finite,
    key_of,
    mean_steps,
)

PERIODS = 48
LEAST_STEP_S = 60
"""A shorter window may contain fewer than the two samples that a rate needs."""


class BadResult(ValueError):
    """The text is not a range of samples of Prometheus."""


@dataclass(frozen=True, slots=True)
class QueryRange:
    """The periods of a history, in seconds since 1970; the first ends one step after the start."""

    end_s: int
    step_s: int
    count: int

    @property
    def ends_s(self) -> tuple[int, ...]:
        """Ends of the periods, the oldest first."""
        return tuple(self.end_s - self.step_s * back for back in range(self.count - 1, -1, -1))


class _Series(BaseModel):
    metric: dict[str, str]
    values: list[tuple[float, str]]


class _Matrix(BaseModel):
    result: list[_Series]


class _Response(BaseModel):
    data: _Matrix


@dataclass(frozen=True, slots=True)
class RangeSeries:
    """A series with one value per period."""

    labels: Mapping[str, str]
    values: Values


_RESPONSE = TypeAdapter(_Response)


def periods(now_s: float, since_s: int) -> QueryRange:
    """Divide the time before `now_s` into at most `PERIODS` periods."""
    step_s = max(LEAST_STEP_S, math.ceil(since_s / PERIODS))
    return QueryRange(int(now_s), step_s, max(1, since_s // step_s))


def queries(namespace: str, name: str, step_s: int) -> dict[str, str]:
    """The queries by what they are for."""
    chosen = f"{{namespace={_quoted(namespace)},deployment={_quoted(name)}}}"

    def grown(metric: MetricSpec, function: str, *by: str) -> str:
        labels = f" by ({', '.join(by)})" if by else ""
        return f"sum{labels} ({function}({metric.sample}{chosen}[{step_s}s]))"

    bucket = speculation.BATCH_BUCKET
    tokens = grown(core.EMITTED_TOKENS, "rate")
    return {
        "tokens": tokens,
        "accept": f"{tokens} / ({grown(core.REQUEST_STEPS, 'rate')} > 0)",
        "steps": grown(speculation.BUCKET_STEPS, "increase", bucket, speculation.STEPS),
        "reached": grown(speculation.POSITION_REACHED, "increase", bucket, speculation.POSITION),
        "accepted": grown(speculation.POSITION_ACCEPTED, "increase", bucket, speculation.POSITION),
    }


def read_response(text: str, wanted: QueryRange) -> tuple[RangeSeries, ...]:
    """Read a response of `query_range`.

    Raises:
        BadResult: it is something else.
    """
    try:
        found = _RESPONSE.validate_json(text).data.result
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise BadResult(f"{place or 'the response'}: {first['msg']}") from None
    places = {end_s: index for index, end_s in enumerate(wanted.ends_s)}
    return tuple(RangeSeries(each.metric, _values(each.values, places)) for each in found)


def work_history(
    source: str, wanted: QueryRange, found: Mapping[str, Sequence[RangeSeries]]
) -> tuple[WorkHistory | None, EngineTotals | None]:
    """Combine the results of `queries`; None where Prometheus has no such series."""
    steps = _by_key(found["steps"], speculation.STEPS)
    reached, accepted = (
        {key: _total(values) for key, values in _by_key(found[name], speculation.POSITION).items()}
        for name in ("reached", "accepted")
    )
    totals = EngineTotals(
        source,
        {key: _total(values) for key, values in steps.items()},
        {key: PositionTotals(reached[key], accepted.get(key, 0.0)) for key in sorted(reached)},
    )
    nothing: Values = (None,) * wanted.count
    tokens, accept = (
        found[name][0].values if found[name] else nothing for name in ("tokens", "accept")
    )
    history = WorkHistory(
        source,
        tuple(datetime.fromtimestamp(end_s, UTC) for end_s in wanted.ends_s),
        tokens,
        accept,
        _mean_by_period(steps, wanted.count),
        mean_steps(totals.steps),
    )
    is_empty = not steps and all(each is None for each in tokens)
    return (None if is_empty else history), (totals if steps or reached else None)


def _mean_by_period(steps: Mapping[tuple[int, int], Values], count: int) -> dict[int, Values]:
    """Mean draft steps by batch bucket in each period."""
    found: dict[int, Values] = {}
    for bucket in sorted({at for at, _ in steps}):
        here = {key: values for key, values in steps.items() if key[0] == bucket}
        each = [
            mean_steps({key: values[index] or 0.0 for key, values in here.items()})
            for index in range(count)
        ]
        found[bucket] = tuple(one.get(bucket) for one in each)
    return found


def _by_key(series: Sequence[RangeSeries], label: str) -> dict[tuple[int, int], Values]:
    keyed = ((key_of(each.labels, label), each.values) for each in series)
    return {key: values for key, values in keyed if key is not None}


def _total(values: Values) -> float:
    return sum(each for each in values if each is not None)


def _values(samples: Sequence[tuple[float, str]], places: Mapping[int, int]) -> Values:
    found: list[float | None] = [None] * len(places)
    for at_s, text in samples:
        index = places.get(round(at_s))
        value = finite(text)
        if index is not None and value is not None:
            found[index] = value
    return tuple(found)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
