"""Metric families of the contract's series."""

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from specdecode_api.series import Kind, Series

Family = CounterMetricFamily | GaugeMetricFamily


def family_of(series: Series) -> Family:
    """Return an empty family of a counter or gauge."""
    kind = CounterMetricFamily if series.kind is Kind.COUNTER else GaugeMetricFamily
    return kind(series.family, series.help, labels=series.labels)


def filled(series: Series, values: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    """Return the family of a series with a value for each tuple of labels."""
    family = family_of(series)
    for labels, value in values:
        assert len(labels) == len(series.labels), (series.family, labels)
        family.add_metric(labels, value)
    return family


def single(series: Series, value: float) -> Metric:
    """Return the family of a series without labels."""
    return filled(series, [((), value)])


def labelled(series: Series, labels: Mapping[str, str], value: float) -> Metric:
    """Return the family of a series with one value."""
    return filled(series, [(tuple(labels[name] for name in series.labels), value)])
