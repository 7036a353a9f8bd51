"""What engines of one kind measured, pod by pod, in an interval."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from specdecode_operator.fleet.reading import DepthTotals, PositionTotals, Reading

Depths = Mapping[tuple[int, int], DepthTotals]
Positions = Mapping[tuple[int, int], PositionTotals]


@dataclass(frozen=True, slots=True)
class ValidityKey:
    """What acceptance and cost depend on, beside the traffic; where it changes, both are unknown.

    As engines tell it: `series.FACTS` without the policy, which measures and does not matter.
    """

    version: str
    model: str
    draft: str
    algorithm: str
    topk: str
    page_size: str
    device: str
    dtype: str


@dataclass(frozen=True, slots=True)
class PodFigures:
    """Rounds by (band, depth) and drafted tokens by (band, position) of one pod."""

    depths: Depths
    positions: Positions


@dataclass(frozen=True, slots=True)
class Pool:
    """Figures of pods that share a key; the pod is the unit of which there may be noisy ones."""

    key: ValidityKey
    pods: tuple[PodFigures, ...]

    @property
    def depths(self) -> Depths:
        """Rounds of all pods."""
        return summed_depths(self.pods)

    @property
    def positions(self) -> Positions:
        """Drafted tokens of all pods."""
        return summed_positions(self.pods)

    @property
    def rounds(self) -> float:
        """Decode rounds of all pods."""
        return sum(cell.rounds for cell in self.depths.values())


def pool_of(readings: Iterable[Reading], earlier: Iterable[Reading] = ()) -> Pool | None:
    """Pool what came between `earlier` readings and these; of a newer process, all of it.

    Pods of another key than most are left out: in the middle of a rollout there are two kinds.
    """
    before = {reading.pod_uid: reading for reading in earlier}
    by_key: dict[ValidityKey, list[PodFigures]] = defaultdict(list)
    for reading in readings:
        if not reading.depths:
            continue  # it has decoded nothing; one that loads does not know its device yet
        by_key[key_of(reading)].append(_figures(before.get(reading.pod_uid), reading))
    if not by_key:
        return None
    ((key, _),) = Counter({key: len(pods) for key, pods in by_key.items()}).most_common(1)
    return Pool(key, tuple(by_key[key]))


def key_of(reading: Reading) -> ValidityKey:
    """Key of one engine."""
    return ValidityKey(
        **{each.name: reading.facts.get(each.name, "") for each in fields(ValidityKey)}
    )


def summed_depths(pods: Iterable[PodFigures]) -> Depths:
    """Add rounds up over pods."""
    found: dict[tuple[int, int], DepthTotals] = {}
    for pod in pods:
        for at, cell in pod.depths.items():
            own = found.get(at, DepthTotals())
            found[at] = DepthTotals(
                own.rounds + cell.rounds,
                own.request_steps + cell.request_steps,
                own.busy_seconds + cell.busy_seconds,
            )
    return found


def summed_positions(pods: Iterable[PodFigures]) -> Positions:
    """Add drafted tokens up over pods."""
    found: dict[tuple[int, int], PositionTotals] = {}
    for pod in pods:
        for at, cell in pod.positions.items():
            own = found.get(at, PositionTotals())
            found[at] = PositionTotals(own.reached + cell.reached, own.accepted + cell.accepted)
    return found


def _figures(before: Reading | None, now: Reading) -> PodFigures:
    if before is None or before.start_s != now.start_s:
        return PodFigures(now.depths, now.positions)
    depths = {at: _less(cell, before.depths.get(at)) for at, cell in now.depths.items()}
    positions = {
        at: _less_place(cell, before.positions.get(at)) for at, cell in now.positions.items()
    }
    return PodFigures(depths, positions)


def _less(now: DepthTotals, before: DepthTotals | None) -> DepthTotals:
    if before is None:
        return now
    return DepthTotals(
        now.rounds - before.rounds,
        now.request_steps - before.request_steps,
        now.busy_seconds - before.busy_seconds,
    )


def _less_place(now: PositionTotals, before: PositionTotals | None) -> PositionTotals:
    if before is None:
        return now
    return PositionTotals(now.reached - before.reached, now.accepted - before.accepted)
