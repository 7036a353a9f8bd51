"""The longest waits of a run: when they were, and which requests were under way meanwhile."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from checks.fuzz.cases import Case

SHOWN_STALLS = 5
MIN_STALL_SECONDS = 0.005
"""Shorter waits are not kept."""
SHOWN_PATH_CHARS = 40


@dataclass(frozen=True, slots=True)
class Wait:
    """Who waited, and from when to when on the monotonic clock, which all processes share."""

    name: str
    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s

    def overlaps(self, start_s: float, end_s: float) -> bool:
        return start_s < self.end_s and end_s > self.start_s


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A request of the attack: its index and kind, and when it was sent and had ended."""

    index: int
    kind: str
    path: str
    body_bytes: int
    start_s: float
    end_s: float

    @classmethod
    def of(cls, index: int, case: Case, start_s: float, end_s: float) -> "SentRequest":
        """Note a request that was sent."""
        target = case.request.head.split(b" ", 2)[1].decode("latin-1")
        size = len(case.request.body)
        return cls(index, case.kind, target[:SHOWN_PATH_CHARS], size, start_s, end_s)


def longest(waits: Iterable[Wait], count: int = SHOWN_STALLS) -> list[Wait]:
    """Return the longest waits, longest first, and of those that overlap only the longest.

    A stop of the engine delays all streams at the same time.
    """
    found: list[Wait] = []
    for wait in sorted(waits, key=lambda each: each.seconds, reverse=True):
        if len(found) == count:
            break
        if not any(wait.overlaps(each.start_s, each.end_s) for each in found):
            found.append(wait)
    return found


def describe_stall(
    stall: Wait, sent: Sequence[SentRequest], machine: Sequence[Wait], begin_s: float
) -> dict[str, object]:
    """Return a stall as JSON, with the requests that were under way or sent during it.

    Args:
        machine: delays of an idle thread; the longest one during the stall is shown.
        begin_s: begin of the attack.
    """
    delays = [each.seconds for each in machine if stall.overlaps(each.start_s, each.end_s)]
    return {
        "waited": stall.name,
        "ms": _ms(stall.seconds),
        "at_s": round(stall.start_s - begin_s, 3),
        "machine_ms": _ms(max(delays, default=0.0)),
        "requests": [
            {
                "index": each.index,
                "kind": each.kind,
                "path": each.path,
                "bytes": each.body_bytes,
                "sent_ms": _ms(each.start_s - stall.start_s),
                "took_ms": _ms(each.end_s - each.start_s),
            }
            for each in sent
            if stall.overlaps(each.start_s, each.end_s)
        ],
    }


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 1)
