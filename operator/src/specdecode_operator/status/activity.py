"""The work of a resource's engines by half hours, for the status. Pure but for one cache.

Counters are compared per pod between its first and its latest reading in a half hour, each with
its time. The half hours of different resources end at different moments, so that an operator does
not write every status at once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from specdecode_api.metrics import BATCH_BUCKETS
from specdecode_api.v1alpha1.activity import MAX_PERIODS, Activity, DraftStepsActivity
from specdecode_operator.fleet import Reading
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.objects.observed import Key

PERIOD_S = 1800.0
NO_STEPS = -1
"""In place of the mean draft steps of a batch bucket without a decode step."""


@dataclass(frozen=True, slots=True)
class Work:
    """What engines did in one half hour, in the units of `status.activity`."""

    tokens_per_second: int = 0
    accept_length_hundredths: int = 0
    draft_steps_tenths: Mapping[int, int] = field(default_factory=dict)
    """Tenths of draft steps by batch bucket."""


@dataclass(frozen=True, slots=True)
class TimedReading:
    """A reading and when it was made, in seconds since 1970."""

    at_s: float
    reading: Reading


Timed = Mapping[str, TimedReading]


@dataclass(frozen=True, slots=True)
class Window:
    """The readings of the present half hour by pod uid, and the work of the one before it."""

    end_s: float
    first: Timed = field(default_factory=dict)
    latest: Timed = field(default_factory=dict)
    ended: tuple[float, Work] | None = None
    """End of the latest complete half hour, and its work."""


def end_of_period(uid: str, now_s: float) -> float:
    """End of the half hour of a resource that contains `now_s`, in seconds since 1970."""
    offset_s = int.from_bytes(sha256(uid.encode()).digest()[:4]) % int(PERIOD_S)
    return ((now_s - offset_s) // PERIOD_S + 1) * PERIOD_S + offset_s


def after_look(
    window: Window | None, uid: str, readings: Iterable[Reading], now_s: float
) -> Window:
    """The window after a look at engines; a look after its end closes it."""
    end_s = end_of_period(uid, now_s)
    found = {each.pod_uid: TimedReading(now_s, each) for each in readings}
    if window is None:
        return Window(end_s, found, found)
    latest = {**window.latest, **found}
    window = replace(window, first={**found, **window.first}, latest=latest)
    if end_s <= window.end_s:
        return window
    return Window(end_s, found, found, (window.end_s, _work(window)))


def extended(previous: Manifest | None, window: Window | None) -> Manifest | None:
    """`status.activity` with the latest complete half hour; unchanged if it contains it already.

    Half hours in which no operator looked are added as half hours without work.
    """
    ended = window.ended if window else None
    if ended is None:
        return previous
    end_s, work = ended
    known_s, rows = _read(previous) if previous else (end_s - PERIOD_S, [])
    missing = round((end_s - known_s) / PERIOD_S)
    if missing < 1:
        return previous
    gap = min(missing - 1, MAX_PERIODS)
    return _shown(end_s, [*rows, *(gap * [Work()]), work][-MAX_PERIODS:])


def measured(previous: Manifest | None, window: Window | None) -> Manifest | None:
    """`status.measured`: the latest complete half hour, at first what was read of the present one.

    The accept length stays while nothing is decoded.
    """
    if window is None or (window.ended is None and previous):
        return previous
    work = window.ended[1] if window.ended else _work(window)
    accept = f"{work.accept_length_hundredths / 100:.2f}" if work.accept_length_hundredths else None
    if accept is None and not previous:
        return None
    return {
        "acceptLength": accept or (previous or {})["acceptLength"],
        "tokensPerSecond": str(work.tokens_per_second),
    }


class ActivityLog:
    """The window of each resource; in memory, so a new leader begins within a half hour."""

    def __init__(self) -> None:
        self._windows: dict[Key, Window] = {}

    def add(self, key: Key, uid: str, readings: Iterable[Reading], now_s: float) -> None:
        """Add a look at the engines of a resource."""
        self._windows[key] = after_look(self._windows.get(key), uid, readings, now_s)

    def extended(self, key: Key, previous: Manifest | None) -> Manifest | None:
        """`status.activity` to write."""
        return extended(previous, self._windows.get(key))

    def measured(self, key: Key, previous: Manifest | None) -> Manifest | None:
        """`status.measured` to write."""
        return measured(previous, self._windows.get(key))

    def forget(self, key: Key) -> None:
        """Drop the window of a resource that is gone."""
        self._windows.pop(key, None)


def _work(window: Window) -> Work:
    tokens_per_s = tokens = request_steps = 0.0
    steps: dict[int, float] = {}
    drafted: dict[int, float] = {}
    for uid, latest in window.latest.items():
        first = window.first[uid]
        now, before = latest.reading, first.reading
        if latest.at_s <= first.at_s or _is_restarted(before, now):
            continue  # no interval is known
        emitted = now.emitted_tokens - before.emitted_tokens
        tokens += emitted
        tokens_per_s += emitted / (latest.at_s - first.at_s)
        request_steps += now.request_steps - before.request_steps
        for (bucket, num_steps), cell in now.step_totals.items():
            old = before.step_totals.get((bucket, num_steps))
            grown = cell.steps - (old.steps if old else 0.0)
            steps[bucket] = steps.get(bucket, 0.0) + grown
            drafted[bucket] = drafted.get(bucket, 0.0) + grown * num_steps
    return Work(
        round(tokens_per_s),
        round(100 * tokens / request_steps) if request_steps else 0,
        {
            bucket: round(10 * drafted[bucket] / number)
            for bucket, number in steps.items()
            if number > 0
        },
    )


def _is_restarted(before: Reading, now: Reading) -> bool:
    """Whether the counters began at 0 in between; the start of a container is known late."""
    return now.start_s != before.start_s or now.emitted_tokens < before.emitted_tokens


def _read(shown: Manifest) -> tuple[float, list[Work]]:
    """End of the newest half hour in seconds since 1970, and all half hours."""
    known = Activity.from_resource(shown)
    tenths = {each.from_: each.tenths for each in known.draft_steps}
    columns = zip(known.tokens_per_second, known.accept_length_hundredths, strict=True)
    return datetime.fromisoformat(known.until).timestamp(), [
        Work(tokens, accept, {at: each[place] for at, each in tenths.items() if each[place] >= 0})
        for place, (tokens, accept) in enumerate(columns)
    ]


def _shown(end_s: float, rows: list[Work]) -> Manifest:
    buckets = {bucket for each in rows for bucket in each.draft_steps_tenths}
    shown = Activity(
        until=datetime.fromtimestamp(end_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        tokens_per_second=[each.tokens_per_second for each in rows],
        accept_length_hundredths=[each.accept_length_hundredths for each in rows],
        draft_steps=[
            DraftStepsActivity.model_validate({"from": bucket, "tenths": _column(rows, bucket)})
            for bucket in BATCH_BUCKETS
            if bucket in buckets
        ],
    )
    manifest: dict[str, Any] = shown.model_dump(mode="json", by_alias=True)
    return manifest


def _column(rows: Iterable[Work], bucket: int) -> list[int]:
    return [each.draft_steps_tenths.get(bucket, NO_STEPS) for each in rows]
