"""Parses the text that engines export, in the format that prometheus_client writes.

The reference is prometheus_client's own parser, which a property test compares with this one. That
parser is written character by character and takes 56 ms for 100 KiB; this one parses each series
(name and labels) once for all responses, because every response of every pod repeats it, and only
the value of a series that is known. It is stricter: what prometheus_client would never write is an
error, not a guess.
"""

import re
from collections import defaultdict
from collections.abc import Container, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

ACCEPT = "application/openmetrics-text; version=1.0.0"
"""Media type to request: OpenMetrics marks its end, so that a text that was cut off is found."""

_END = "# EOF\n"
_NUMBER = r"(?:[+-]?(?:[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|Inf)|NaN)"
_VALUE = r'"(?:[^"\\]|\\[\\"n])*"'
_PAIR = rf"[a-zA-Z_][a-zA-Z0-9_]*={_VALUE}"
_LABELS = rf"{_PAIR}(?:,{_PAIR})*"
_SERIES = rf"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{{({_LABELS})\}})?"
_LINE = re.compile(
    rf"({_SERIES}) ({_NUMBER})"
    rf"(?: {_NUMBER})?(?: # \{{(?:{_LABELS})?\}} {_NUMBER}(?: {_NUMBER})?)?"  # time, exemplar
)
_NUMBER_ALONE = re.compile(_NUMBER)
_SERIES_ALONE = re.compile(_SERIES)
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "\\": "\\", '"': '"'}
_LABEL_SETS = 10_000
_KNOWN_SERIES = 20_000
"""Latest ones that are kept: the pods of a resource export the same ones every time."""
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
    seen: set[str] = set()
    for line in text.split("\n"):
        if not line or line[0] == "#":
            continue
        written, _, number = line.rpartition(" ")
        known = _series(written)
        if known is None or _NUMBER_ALONE.fullmatch(number) is None:
            written, number = _with_time_or_exemplar(line)
            known = _series(written)
        if known is None:
            raise _refusal(line, "is not a sample")
        name, labels = known
        if name not in wanted:
            continue
        if labels is None:
            raise _refusal(written, "repeats a label")
        if written in seen:
            raise _refusal(written, "is there twice")
        seen.add(written)
        found[name].append(Sample(labels, float(number)))
    return found


def _with_time_or_exemplar(line: str) -> tuple[str, str]:
    """Series and value of a line that contains more than these.

    Raises:
        BadScrape: the line is malformed.
    """
    match = _LINE.fullmatch(line)
    if match is None:
        raise _refusal(line, "is not a sample")
    return match[1], match[4]


def _refusal(text: str, why: str) -> BadScrape:
    return BadScrape(f"the response cannot be read: {text[:SHOWN_CHARS]!r} {why}")


@lru_cache(maxsize=_KNOWN_SERIES)
def _series(written: str) -> tuple[str, Mapping[str, str] | None] | None:
    """Name and labels; None instead of the labels if it repeats one, or of both if malformed."""
    match = _SERIES_ALONE.fullmatch(written)
    return match and (match[1], _labels(match[2] or ""))


@lru_cache(maxsize=_LABEL_SETS)
def _labels(written: str) -> Mapping[str, str] | None:
    pairs = _LABEL.findall(written)
    labels = {name: _ESCAPE.sub(_unescaped, value) for name, value in pairs}
    return None if len(labels) < len(pairs) else MappingProxyType(labels)


def _unescaped(escape: re.Match[str]) -> str:
    return _ESCAPED[escape[1]]
