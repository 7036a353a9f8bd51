"""Adds readings up, arm by arm, so that every request counts once or, where it was lost, not."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

from specdecode_operator.fleet.reading import Reading
from specdecode_operator.fleet.sums import add, grown, is_empty
from specdecode_operator.judge.evidence import ArmEvidence, ArmKey

MAX_PODS = 256
MAX_ARMS = 8
SAME_START_S = 0.001

Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Seen:
    """A pod as it was read last."""

    start_s: float
    key: ArmKey
    arms: Mapping[ArmKey, ArmEvidence]


def _empty() -> Mapping[Key, Value]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Ledger:
    """Evidence by arm since `begun_s`, and the state that adding the next reading needs.

    A process that was not read before counts in full if it started after `begun_s`, so a pod that
    comes in mid-run loses nothing; one that is older counts from its first reading on. What a
    process did between its last reading and its end is lost, never guessed. The clocks of pods and
    operator are compared for that alone: an error of theirs moves the first reading of a pod.

    `followed` names the arms that matter; empty follows all, up to `MAX_ARMS`.
    """

    begun_s: float
    followed: frozenset[ArmKey] = frozenset()
    totals: Mapping[ArmKey, ArmEvidence] = field(default_factory=_empty)
    block: Mapping[ArmKey, ArmEvidence] = field(default_factory=_empty)
    members: Mapping[ArmKey, frozenset[str]] = field(default_factory=_empty)
    seen: Mapping[str, Seen] = field(default_factory=_empty)
    forgotten_s: float = 0.0  # latest start of a process that is no longer known

    @classmethod
    def begin(cls, now_s: float, followed: Iterable[ArmKey] = ()) -> "Ledger":
        """Begin at a moment, in seconds since 1970."""
        return cls(now_s, frozenset(followed))

    def arm(self, key: ArmKey) -> ArmEvidence:
        """All that was seen of an arm since it was started."""
        pods = len(self.members.get(key, ()))
        return replace(self.totals.get(key, ArmEvidence()), pods=pods)

    def take(self, readings: Iterable[Reading]) -> "Ledger":
        """Count what is new in readings; pods without one are left as they were."""
        ledger = self
        for reading in readings:
            ledger = ledger._take(reading)
        return ledger._forget()

    def start(self, key: ArmKey) -> "Ledger":
        """Discard what was seen of an arm so far: its warm-up."""
        return replace(
            self,
            totals=_without(self.totals, key),
            block=_without(self.block, key),
            members=_without(self.members, key),
        )

    def cut(self) -> tuple["Ledger", Mapping[ArmKey, ArmEvidence]]:
        """End a block: what came since the last cut, and the ledger that begins the next one.

        To discard a washout, cut before and after it and leave the second block out.
        """
        return replace(self, block={}), self.block

    def _take(self, reading: Reading) -> "Ledger":
        before = self.seen.get(reading.pod_uid)
        if before is not None and reading.start_s < before.start_s - SAME_START_S:
            return self  # a late reading of a process that has ended
        new: dict[ArmKey, ArmEvidence] = {}
        for key, found in self._new(before, reading):
            if self._follows(key) and not is_empty(found):
                new[key] = add(new.get(key, ArmEvidence()), found)
        return replace(
            self,
            totals=_added(self.totals, new),
            block=_added(self.block, new),
            members=self._joined(reading, new),
            seen=self._noted(reading),
        )

    def _new(self, before: Seen | None, reading: Reading) -> Iterator[tuple[ArmKey, ArmEvidence]]:
        """What a reading adds, arm by arm; an arm may come twice."""
        if before is None:
            is_known_whole = reading.start_s > max(self.begun_s, self.forgotten_s)
            yield from reading.arms.items() if is_known_whole else ()
        elif reading.start_s > before.start_s + SAME_START_S:
            yield before.key, ArmEvidence(restarts=1.0)
            yield from reading.arms.items()
        else:
            for key, now in reading.arms.items():
                yield key, grown(before.arms.get(key, ArmEvidence()), now)

    def _follows(self, key: ArmKey) -> bool:
        if self.followed:
            return key in self.followed
        return key in self.totals or len(self.totals) < MAX_ARMS

    def _joined(
        self, reading: Reading, new: Mapping[ArmKey, ArmEvidence]
    ) -> Mapping[ArmKey, frozenset[str]]:
        joined = dict(self.members)
        for key, found in new.items():
            if found.strata and len(joined.get(key, ())) < MAX_PODS:
                joined[key] = joined.get(key, frozenset()) | {reading.pod_uid}
        return joined

    def _noted(self, reading: Reading) -> Mapping[str, Seen]:
        """Keep what was read, latest last.

        An engine that no longer exports a table has forgotten it and would start it at 0 again.
        """
        arms = reading.arms.items()
        kept = {key: found for key, found in arms if not self.followed or key in self.followed}
        others = {uid: seen for uid, seen in self.seen.items() if uid != reading.pod_uid}
        return others | {reading.pod_uid: Seen(reading.start_s, reading.key, kept)}

    def _forget(self) -> "Ledger":
        """Drop the pods that were read longest ago; one that returns counts afresh."""
        surplus = list(self.seen)[: max(len(self.seen) - MAX_PODS, 0)]
        if not surplus:
            return self
        latest_s = max(self.seen[uid].start_s for uid in surplus)
        kept = {uid: seen for uid, seen in self.seen.items() if uid not in surplus}
        return replace(self, seen=kept, forgotten_s=max(self.forgotten_s, latest_s))


def _added(
    totals: Mapping[ArmKey, ArmEvidence], new: Mapping[ArmKey, ArmEvidence]
) -> Mapping[ArmKey, ArmEvidence]:
    added = dict(totals)
    for key, found in new.items():
        added[key] = add(added.get(key, ArmEvidence()), found)
    return added


def _without(mapping: Mapping[Key, Value], key: Key) -> Mapping[Key, Value]:
    return {name: value for name, value in mapping.items() if name != key}
