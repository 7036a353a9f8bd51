"""Reads the text that engines export into samples; a text that was cut off is refused."""

from collections.abc import Iterator

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from specdecode_operator.fleet.reading import BadScrape, Sample

ACCEPT = "application/openmetrics-text; version=1.0.0"
"""What to ask for: this format says where it ends."""


def read(text: str) -> tuple[Sample, ...]:
    """Read a whole answer.

    Raises:
        BadScrape: it is no such text, or not all of it.
    """
    try:
        return tuple(_samples(text))
    except (ValueError, KeyError, IndexError) as error:
        raise BadScrape(f"the answer cannot be read: {error}") from error


def _samples(text: str) -> Iterator[Sample]:
    for family in text_string_to_metric_families(text):  # type: ignore[no-untyped-call]
        for sample in family.samples:
            yield Sample(sample.name, sample.labels, sample.value)
