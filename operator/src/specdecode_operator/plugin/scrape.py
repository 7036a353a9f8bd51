"""Parses the metrics of an engine; names are those of `specdecode_api.metrics`."""

from collections import defaultdict
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from specdecode_api.metrics import MetricSpec, core, speculation
from specdecode_operator.plugin.sample import EngineSample, RangeSample, Totals

_TOTALS: Final = {
    "steps": (core.DECODE_STEPS, speculation.RANGE_STEPS),
    "request_steps": (core.REQUEST_STEPS, speculation.RANGE_REQUEST_STEPS),
    "drafted_tokens": (core.DRAFTED_TOKENS, speculation.RANGE_DRAFTED_TOKENS),
    "accepted_tokens": (core.ACCEPTED_TOKENS, speculation.RANGE_ACCEPTED_TOKENS),
    "emitted_tokens": (core.EMITTED_TOKENS, speculation.RANGE_EMITTED_TOKENS),
    "decode_seconds": (core.DECODE_SECONDS, speculation.RANGE_DECODE_SECONDS),
}
"""Fields of `Totals` with their metrics, of the whole engine and of a range."""


def read(text: str, at_s: float) -> EngineSample:
    """Parse a response of `/metrics`.

    Raises:
        ValueError: the text is invalid, or not from an engine.
    """
    values = _values(text)

    def value(metric: MetricSpec, label: str = "") -> float:
        return values[metric.sample][label]

    try:
        return EngineSample(
            at_s=at_s,
            num_steps=int(value(core.NUM_STEPS)),
            active_range=int(value(core.ACTIVE_RANGE)),
            running_requests=int(value(core.RUNNING_REQUESTS)),
            waiting_requests=int(value(core.WAITING_REQUESTS)),
            kv_pages_free=value(core.KV_PAGES, "free"),
            kv_pages_used=value(core.KV_PAGES, "used"),
            queried_tokens=value(core.CACHE_QUERIED_TOKENS),
            hit_tokens=value(core.CACHE_HIT_TOKENS),
            totals=Totals(**{name: value(whole) for name, (whole, _) in _TOTALS.items()}),
            ranges=_ranges(values),
        )
    except KeyError as error:
        raise ValueError(
            f"metric {error} is missing; is this an engine of this release?"
        ) from error


Values = dict[str, dict[str, float]]
"""Sample name to values by its only label; "" without a label."""


def _values(text: str) -> Values:
    values: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if len(sample.labels) <= 1:
                values[sample.name]["".join(sample.labels.values())] = sample.value
    return dict(values)


def _ranges(values: Values) -> tuple[RangeSample, ...]:
    found = values.get(speculation.RANGE_NUM_STEPS.sample, {})
    return tuple(
        RangeSample(int(bound), int(steps), _range_totals(values, bound))
        for bound, steps in sorted(found.items(), key=lambda item: int(item[0]))
    )


def _range_totals(values: Values, bound: str) -> Totals:
    totals = {name: values[metric.sample][bound] for name, (_, metric) in _TOTALS.items()}
    return Totals(**totals)
