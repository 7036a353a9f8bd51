"""Measurements of engines of one kind in an interval, pod by pod."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from specdecode_operator.fleet.reading import BucketTotals, PositionTotals, Reading

AllSteps = Mapping[tuple[int, int], BucketTotals]
Positions = Mapping[tuple[int, int], PositionTotals]


@dataclass(frozen=True, slots=True)
class ValidityKey:
    """What acceptance and cost depend on, apart from the traffic.

    With another key both are unknown. The fields are `metrics.FACTS` without the policy, on
    which they do not depend.
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
    """Decode steps by (batch bucket, draft steps), draft tokens by (batch bucket, position)."""

    step_totals: AllSteps
    positions: Positions


@dataclass(frozen=True, slots=True)
class Pool:
    """Measurements of pods that share a key."""

    key: ValidityKey
    pods: tuple[PodFigures, ...]

    @property
    def step_totals(self) -> AllSteps:
        """Decode steps of all pods, by batch bucket and draft steps."""
        return summed_steps(self.pods)

    @property
    def positions(self) -> Positions:
        """Draft tokens of all pods, by batch bucket and position."""
        return summed_positions(self.pods)

    @property
    def decode_steps(self) -> float:
        """Number of decode steps of all pods."""
        return sum(cell.steps for cell in self.step_totals.values())


def pool_of(readings: Iterable[Reading], earlier: Iterable[Reading] = ()) -> Pool | None:
    """Pool the differences between `earlier` readings and these; of a newer process, its totals.

    Pods with another key than most are left out: during a rollout there are two kinds.
    """
    before = {reading.pod_uid: reading for reading in earlier}
    by_key: dict[ValidityKey, list[PodFigures]] = defaultdict(list)
    for reading in readings:
        if not reading.step_totals:
            continue  # it has decoded nothing; an engine that loads does not know its device yet
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


def summed_steps(pods: Iterable[PodFigures]) -> AllSteps:
    """Add up decode steps over pods."""
    found: dict[tuple[int, int], BucketTotals] = {}
    for pod in pods:
        for at, cell in pod.step_totals.items():
            own = found.get(at, BucketTotals())
            found[at] = BucketTotals(
                own.steps + cell.steps,
                own.request_steps + cell.request_steps,
                own.busy_seconds + cell.busy_seconds,
            )
    return found


def summed_positions(pods: Iterable[PodFigures]) -> Positions:
    """Add up draft tokens over pods."""
    found: dict[tuple[int, int], PositionTotals] = {}
    for pod in pods:
        for at, cell in pod.positions.items():
            own = found.get(at, PositionTotals())
            found[at] = PositionTotals(own.reached + cell.reached, own.accepted + cell.accepted)
    return found


def _figures(before: Reading | None, now: Reading) -> PodFigures:
    if before is None or before.start_s != now.start_s:
        return PodFigures(now.step_totals, now.positions)
    step_totals = {
        at: _less(cell, before.step_totals.get(at)) for at, cell in now.step_totals.items()
    }
    positions = {
        at: _less_place(cell, before.positions.get(at)) for at, cell in now.positions.items()
    }
    return PodFigures(step_totals, positions)


def _less(now: BucketTotals, before: BucketTotals | None) -> BucketTotals:
    if before is None:
        return now
    return BucketTotals(
        now.steps - before.steps,
        now.request_steps - before.request_steps,
        now.busy_seconds - before.busy_seconds,
    )


def _less_place(now: PositionTotals, before: PositionTotals | None) -> PositionTotals:
    if before is None:
        return now
    return PositionTotals(now.reached - before.reached, now.accepted - before.accepted)
