"""Parses the text that engines export, in the format that prometheus_client writes.

The reference is prometheus_client's own parser, which a property test compares with this one. That
parser is written character by character and takes 56 ms for 100 KiB; this one matches one regular
expression per line, parses each set of labels once, and skips the series that nobody asked for.
It is stricter: what prometheus_client would never write is an error, not a guess.
"""

import re
from collections import defaultdict
from collections.abc import Container, Mapping
from typing import NamedTuple

ACCEPT = "application/openmetrics-text; version=1.0.0"
"""Media type to request: OpenMetrics marks its end, so that a text that was cut off is found."""

_END = "# EOF\n"
_NUMBER = r"(?:[+-]?(?:[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|Inf)|NaN)"
_VALUE = r'"(?:[^"\\]|\\[\\"n])*"'
_PAIR = rf"[a-zA-Z_][a-zA-Z0-9_]*={_VALUE}"
_LABELS = rf"(?:{_PAIR}(?:,{_PAIR})*)?"
_SAMPLE = re.compile(
    rf"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{{(.*?)\}})? ({_NUMBER})"
    rf"(?: {_NUMBER})?(?: # \{{{_LABELS}\}} {_NUMBER}(?: {_NUMBER})?)?"  # time, exemplar
)
_LABEL_SET = re.compile(_LABELS)
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "\\": "\\", '"': '"'}
SHOWN_CHARS = 100


class BadScrape(ValueError):
    """The response is not a complete one of an engine of this release, for the reason given."""


class Sample(NamedTuple):
    """One value of a series."""

    labels: Mapping[str, str]
    value: float


Samples = Mapping[str, list[Sample]]
"""Samples by name, as exported: names of counters end in `_total`, of buckets in `_bucket`."""


def read(text: str, wanted: Container[str]) -> Samples:
    """Parse the samples whose names are `wanted`, in the order of the text.

    Lines of other series are parsed as well, but not converted.

    Raises:
        BadScrape: the text has no end mark, a line is malformed, or a series is there twice.
    """
    if not text.endswith(_END):
        raise BadScrape("the response cannot be read: its last line is not # EOF, it was cut off")
    return read_lines(text.removesuffix(_END), wanted)


def read_lines(text: str, wanted: Container[str]) -> Samples:
    """Parse samples as `read` does, but of a text without an end mark (text format 0.0.4).

    Raises:
        BadScrape: a line is malformed, or a series is there twice.
    """
    found: defaultdict[str, list[Sample]] = defaultdict(list)
    seen: set[tuple[str, str | None]] = set()
    label_sets: dict[str | None, Mapping[str, str]] = {None: {}}
    match = _SAMPLE.fullmatch
    for line in text.split("\n"):
        if not line or line[0] == "#":
            continue
        parts = match(line)
        if parts is None:
            raise BadScrape(f"the response cannot be read: {line[:SHOWN_CHARS]!r} is not a sample")
        name, written, value = parts.groups()
        if name not in wanted:
            continue
        if (name, written) in seen:
            raise BadScrape(f"the response cannot be read: {line[:SHOWN_CHARS]!r} is there twice")
        seen.add((name, written))
        labels = label_sets.get(written)
        if labels is None:
            labels = label_sets[written] = _labels(line, written or "")
        found[name].append(Sample(labels, float(value)))
    return found


def _labels(line: str, written: str) -> Mapping[str, str]:
    if _LABEL_SET.fullmatch(written) is None:
        raise BadScrape(f"the response cannot be read: {line[:SHOWN_CHARS]!r} is not a sample")
    pairs = _LABEL.findall(written)
    labels = {name: _ESCAPE.sub(_unescaped, value) for name, value in pairs}
    if len(labels) < len(pairs):
        raise BadScrape(f"the response cannot be read: {line[:SHOWN_CHARS]!r} repeats a label")
    return labels


def _unescaped(escape: re.Match[str]) -> str:
    return _ESCAPED[escape[1]]
