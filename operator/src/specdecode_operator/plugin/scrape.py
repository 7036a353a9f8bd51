"""Reads what an engine exports into numbers; the names are those of the engine's metrics."""

from collections import defaultdict

from prometheus_client.parser import text_string_to_metric_families

from specdecode_api.names import METRIC_PREFIX
from specdecode_operator.plugin.sample import EngineSample, RangeSample, Totals


def read(text: str, at_s: float) -> EngineSample:
    """Read an answer of `/metrics`.

    Raises:
        ValueError: when it is no such text, or not an engine's.
    """
    values = _values(text)
    try:
        return EngineSample(
            at_s=at_s,
            num_steps=int(values["num_steps"][""]),
            active_range=int(values["active_range"][""]),
            running_requests=int(values["running_requests"][""]),
            waiting_requests=int(values["waiting_requests"][""]),
            kv_pages_free=values["kv_pages"]["free"],
            kv_pages_used=values["kv_pages"]["used"],
            queried_tokens=values["prefix_cache_queried_tokens_total"][""],
            hit_tokens=values["prefix_cache_hit_tokens_total"][""],
            totals=_totals(values, "", ""),
            ranges=_ranges(values),
        )
    except KeyError as error:
        raise ValueError(f"it exports no {error}; is it an engine of this release?") from error


Values = dict[str, dict[str, float]]
"""Metric, without its prefix, to its values by their one label, "" where it has none."""


def _values(text: str) -> Values:
    values: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if len(sample.labels) <= 1:
                name = sample.name.removeprefix(METRIC_PREFIX)
                values[name]["".join(sample.labels.values())] = sample.value
    return dict(values)


def _ranges(values: Values) -> tuple[RangeSample, ...]:
    found = values.get("range_num_steps", {})
    return tuple(
        RangeSample(int(bound), int(steps), _totals(values, "range_", bound))
        for bound, steps in sorted(found.items(), key=lambda item: int(item[0]))
    )


def _totals(values: Values, prefix: str, label: str) -> Totals:
    return Totals(
        **{name: values[f"{prefix}{name}_total"][label] for name in Totals.__dataclass_fields__}
    )
