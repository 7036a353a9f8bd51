"""Evidence as a JSON document: strict on the way in, so that what can be read can be judged."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

from specdecode_operator.judge.evidence import Latencies, Role, Stratum
from specdecode_operator.judge.trial_evidence import (
    CELL,
    MAX_PAIRS,
    MAX_PODS,
    MAX_STRATA,
    MAX_WINDOWS,
    ROW,
    Cell,
    Counts,
    Histograms,
    PodEvidence,
    PodWindow,
    PodWindows,
    Tails,
    TurnEvidence,
)

VERSION = 3
LARGEST = 1e300
MOST = 2**53
"""Whole numbers up to here are exact in every JSON parser."""

Document = dict[str, Any]


class BadEvidence(ValueError):
    """The document is not evidence of this release; the message has place, value and remedy."""


def to_document(evidence: TurnEvidence | PodEvidence) -> Document:
    """Write evidence as plain JSON values."""
    document: Document = {
        "version": VERSION,
        "strata": [list(stratum) for stratum in evidence.strata],
        "tails": list(astuple(evidence.tails)),
        "baseline": _histograms(evidence.baseline),
        "candidate": _histograms(evidence.candidate),
    }
    if isinstance(evidence, TurnEvidence):
        return document | {
            "pairs": [list(counts) for counts in evidence.pairs],
            "open": list(evidence.open),
            "abandoned": list(evidence.abandoned),
            "before": list(evidence.before),
        }
    return document | {
        "total": list(evidence.total),
        "pods": [
            [
                each.pod,
                each.role.value,
                [list(window) for window in each.windows],
                list(each.sums),
            ]
            for each in evidence.pods
        ],
    }


def from_document(document: Any) -> TurnEvidence | PodEvidence:
    """Read what `to_document` wrote.

    Raises:
        BadEvidence: anything is missing, of another type or out of range.
    """
    fields = _mapping(document, "evidence")
    if fields.get("version") != VERSION:
        raise _bad("evidence.version", fields.get("version"), f"must be {VERSION}")
    is_pods = "pods" in fields
    own = {"total", "pods"} if is_pods else {"pairs", "open", "abandoned", "before"}
    wanted = {"version", "strata", "tails", "baseline", "candidate"} | own
    if fields.keys() != wanted:
        raise _bad("evidence", sorted(map(str, fields)), f"must have the fields {sorted(wanted)}")
    strata = tuple(
        _stratum(row, f"evidence.strata[{index}]")
        for index, row in enumerate(_list(fields["strata"], "evidence.strata", MAX_STRATA))
    )
    if len(set(strata)) != len(strata):
        raise _bad("evidence.strata", fields["strata"], "must not contain a stratum twice")
    common: dict[str, Any] = {
        "strata": strata,
        "tails": _tails(fields["tails"]),
        "baseline": _histograms_of(fields["baseline"], "evidence.baseline"),
        "candidate": _histograms_of(fields["candidate"], "evidence.candidate"),
    }
    if is_pods:
        total = _counts(fields["total"], "evidence.total", len(strata))
        return PodEvidence(**common, total=total, pods=_pods(fields["pods"]))
    return TurnEvidence(
        **common,
        pairs=tuple(
            _counts(counts, f"evidence.pairs[{index}]", len(strata))
            for index, counts in enumerate(_list(fields["pairs"], "evidence.pairs", MAX_PAIRS))
        ),
        open=_counts(fields["open"], "evidence.open", len(strata)),
        abandoned=_counts(fields["abandoned"], "evidence.abandoned", len(strata)),
        before=_counts(fields["before"], "evidence.before", len(strata)),
    )


def _bad(place: str, value: object, rule: str) -> BadEvidence:
    text = repr(value)
    shown = text if len(text) <= 80 else f"{text[:77]}..."
    return BadEvidence(f"{place} is {shown}; it {rule}; read it from a trial of this release")


def _mapping(value: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _bad(place, value, "must be an object")
    return value


def _list(value: Any, place: str, most: int, least: int = 0) -> Sequence[Any]:
    if not isinstance(value, list | tuple) or not least <= len(value) <= most:
        size = f"{least}" if least == most else f"{least} to {most}"
        raise _bad(place, value, f"must be a list of {size} items")
    return value


def _whole(value: Any, place: str, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= MOST:
        raise _bad(place, value, f"must be a whole number from {least} to {MOST}")
    return value


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str) or len(value) > 256:
        raise _bad(place, value, "must be a text of at most 256 characters")
    return value


def _amount(value: Any, place: str) -> float:
    if type(value) not in (int, float) or not 0.0 <= value < LARGEST:
        raise _bad(place, value, "must be a finite number of at least 0")
    return float(value)


def _stratum(value: Any, place: str) -> Stratum:
    size, *words = _list(value, place, 5, 5)
    texts = [_text(word, f"{place}[{index}]") for index, word in enumerate(words, start=1)]
    return Stratum(_whole(size, f"{place}[0]"), *texts)


def _tails(value: Any) -> Tails:
    first, inter = _list(value, "evidence.tails", 2, 2)
    return Tails(_whole(first, "evidence.tails[0]", -1), _whole(inter, "evidence.tails[1]", -1))


def _counts(value: Any, place: str, strata: int) -> Counts:
    numbers = _list(value, place, 2 * (ROW + CELL * strata))
    if numbers and (len(numbers) < 2 * ROW or (len(numbers) - 2 * ROW) % (2 * CELL)):
        raise _bad(place, len(numbers), "must have all numbers of both roles and of each stratum")
    return tuple(_whole(number, f"{place}[{index}]") for index, number in enumerate(numbers))


def _pods(value: Any) -> tuple[PodWindows, ...]:
    pods = []
    for index, row in enumerate(_list(value, "evidence.pods", MAX_PODS)):
        place = f"evidence.pods[{index}]"
        name, role, windows, sums = _list(row, place, 4, 4)
        if role not in tuple(Role):
            raise _bad(f"{place}[1]", role, f"must be {Role.BASELINE} or {Role.CANDIDATE}")
        rows = _list(windows, f"{place}[2]", MAX_WINDOWS)
        found = tuple(_window(each, f"{place}[2][{at}]") for at, each in enumerate(rows))
        numbers = _list(sums, f"{place}[3]", CELL, CELL)
        cell = Cell(*(_whole(each, f"{place}[3][{at}]") for at, each in enumerate(numbers)))
        pods.append(PodWindows(_text(name, f"{place}[0]"), Role(role), found, cell))
    if len({each.pod for each in pods}) != len(pods):
        raise _bad("evidence.pods", [each.pod for each in pods], "must not contain a pod twice")
    return tuple(pods)


def _window(value: Any, place: str) -> PodWindow:
    numbers = _list(value, place, len(PodWindow._fields), len(PodWindow._fields))
    signed = PodWindow._fields.index("log_ratio_micro")
    return PodWindow(
        *(
            _whole(number, f"{place}[{index}]", -MOST if index == signed else 0)
            for index, number in enumerate(numbers)
        )
    )


def _histograms(histograms: Histograms) -> list[list[Any]]:
    return [
        [list(each.bounds_s), list(each.counts), each.sum_s]
        for each in (histograms.first_token, histograms.inter_token)
    ]


def _histograms_of(value: Any, place: str) -> Histograms:
    rows = _list(value, place, 2, 2)
    return Histograms(*(_latencies(row, f"{place}[{index}]") for index, row in enumerate(rows)))


def _latencies(value: Any, place: str) -> Latencies:
    bounds, counts, sum_s = _list(value, place, 3, 3)
    bounds_s, numbers = (
        tuple(_amount(each, f"{place}[{at}][{index}]") for index, each in enumerate(items))
        for at, items in enumerate(
            (_list(bounds, f"{place}[0]", 64), _list(counts, f"{place}[1]", 65))
        )
    )
    if bool(numbers) != bool(bounds_s) or (numbers and len(numbers) != len(bounds_s) + 1):
        raise _bad(f"{place}[1]", len(numbers), "must have one count more than there are bounds")
    return Latencies(bounds_s, numbers, _amount(sum_s, f"{place}[2]"))
