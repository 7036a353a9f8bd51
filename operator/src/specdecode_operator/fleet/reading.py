"""What one engine said at one moment: totals since its process started, by arm."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

from specdecode_api import metrics
from specdecode_api.metrics import MetricSpec
from specdecode_operator.judge.evidence import (
    ArmEvidence,
    ArmKey,
    Latencies,
    RequestSums,
    Stratum,
)

ANSWERED = ("stop", "length")
DECODE_STEPS = (metrics.BUCKET_STEPS, metrics.BUCKET_REQUEST_STEPS, metrics.BUCKET_BUSY_SECONDS)
POSITIONS = (metrics.POSITION_REACHED, metrics.POSITION_ACCEPTED)
LATENCIES = (metrics.FIRST_TOKEN_SECONDS, metrics.INTER_TOKEN_SECONDS)


class Sample(NamedTuple):
    """One value of a series, as exported: `name` ends as counters' and buckets' samples do."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class DepthTotals:
    """Decode rounds of one depth in one band of batch sizes."""

    rounds: float = 0.0
    request_steps: float = 0.0
    busy_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class PositionTotals:
    """Drafted tokens at one position behind accepted ones only, and those that were kept."""

    reached: float = 0.0
    accepted: float = 0.0


@dataclass(frozen=True, slots=True)
class Reading:
    """One pod, complete: a scrape of which anything is missing gives none.

    `key` is what the pod runs now; `arms` has what it counted since `start_s` under every table
    that it still tells of. `depths` and `positions` go by (band, depth) and (band, position);
    `facts` are the labels of `metrics.INFO`.
    """

    pod_uid: str
    start_s: float  # since 1970
    key: ArmKey
    arms: Mapping[ArmKey, ArmEvidence]
    depths: Mapping[tuple[int, int], DepthTotals] = field(
        default_factory=lambda: MappingProxyType({})
    )
    positions: Mapping[tuple[int, int], PositionTotals] = field(
        default_factory=lambda: MappingProxyType({})
    )
    facts: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Scraped:
    """Readings of the pods that answered, and why there is none of the others, by their names."""

    readings: tuple[Reading, ...] = ()
    failures: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


class BadScrape(ValueError):
    """What was read is no whole answer of an engine of this release; the message says why."""


def reading_of(pod_uid: str, samples: Iterable[Sample]) -> Reading:
    """Understand the samples of one pod.

    Raises:
        BadScrape: something is missing or makes no sense; nothing of it may be counted.
    """
    found: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        found[sample.name].append(sample)
    try:
        return _reading(pod_uid, found)
    except (KeyError, ValueError) as error:
        raise BadScrape(f"pod {pod_uid}: {error}; is it an engine of this release?") from error


Found = Mapping[str, list[Sample]]


def _reading(pod_uid: str, found: Found) -> Reading:
    facts = _only(found, metrics.INFO).labels
    config_hash = facts["config_hash"]
    key = ArmKey(config_hash, facts["table_hash"])
    arms = _arms(found, config_hash)
    return Reading(
        pod_uid=pod_uid,
        start_s=_only(found, metrics.PROCESS_START).value,
        key=key,
        arms={key: ArmEvidence()} | arms,
        depths={at: DepthTotals(*row) for at, row in _cells(found, DECODE_STEPS).items()},
        positions={at: PositionTotals(*row) for at, row in _cells(found, POSITIONS).items()},
        facts=dict(facts),
    )


def _only(found: Found, wanted: MetricSpec) -> Sample:
    samples = found.get(wanted.sample, [])
    if len(samples) != 1:
        raise ValueError(f"{wanted.sample} has {len(samples)} values in place of one")
    return samples[0]


def _arms(found: Found, config_hash: str) -> dict[ArmKey, ArmEvidence]:
    strata = _strata(found)
    first, later = (_latencies(found, each) for each in LATENCIES)
    answered = _by_table(found, metrics.REQUESTS, "finish_reason", ANSWERED.__contains__)
    failed = _by_table(found, metrics.HTTP_ERRORS, "status", _is_failure)
    preempted = _by_table(found, metrics.PREEMPTED_REQUESTS)
    tables = {*strata, *first, *later, *answered, *failed, *preempted}
    return {
        ArmKey(config_hash, table): ArmEvidence(
            strata=strata.get(table, {}),
            first_token=first.get(table, Latencies()),
            inter_token=later.get(table, Latencies()),
            answered_requests=answered.get(table, 0.0),
            failed_requests=failed.get(table, 0.0),
            preempted_requests=preempted.get(table, 0.0),
        )
        for table in tables
    }


def _is_failure(status: str) -> bool:
    """Whether what ran is to blame; 503 says that the pod loads or drains, whatever runs."""
    return status >= "500" and status != "503"


def _strata(found: Found) -> dict[str, dict[Stratum, RequestSums]]:
    labels = (metrics.TABLE, *metrics.STRATUM)
    arms: dict[str, dict[Stratum, RequestSums]] = defaultdict(dict)
    for (table, band, *words), row in _rows(found, metrics.REQUEST_SUMS, labels).items():
        arms[table][Stratum(int(band), *words)] = RequestSums(*row)
    return arms


def _cells(found: Found, wanted: Sequence[MetricSpec]) -> dict[tuple[int, int], list[float]]:
    rows = _rows(found, wanted, wanted[0].labels)
    return {(int(band), int(place)): row for (band, place), row in rows.items()}


def _rows(
    found: Found, wanted: Sequence[MetricSpec], labels: Sequence[str]
) -> dict[tuple[str, ...], list[float]]:
    """Values of several series side by side, by their labels; each has all, or it is no answer."""
    rows: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for each in wanted:
        for sample in found.get(each.sample, ()):
            rows[tuple(sample.labels[label] for label in labels)].append(_amount(sample))
    for at, row in rows.items():
        if len(row) != len(wanted):
            names = f"{wanted[0].sample} to {wanted[-1].sample}"
            raise ValueError(f"{names} are not complete for {at}")
    return rows


def _latencies(found: Found, wanted: MetricSpec) -> dict[str, Latencies]:
    cumulative: dict[str, dict[float, float]] = defaultdict(dict)
    for sample in found.get(wanted.sample, ()):
        cumulative[sample.labels[metrics.TABLE]][float(sample.labels["le"])] = _amount(sample)
    sums_s = {
        sample.labels[metrics.TABLE]: _amount(sample)
        for sample in found.get(f"{wanted.family}_sum", ())
    }
    return {table: _by_bucket(wanted, below, sums_s[table]) for table, below in cumulative.items()}


def _by_bucket(wanted: MetricSpec, below: Mapping[float, float], sum_s: float) -> Latencies:
    if tuple(sorted(below)) != (*wanted.bounds_s, math.inf):
        raise ValueError(f"{wanted.sample} has the bounds {sorted(below)}")
    totals = [0.0, *(below[bound] for bound in sorted(below))]
    counts = tuple(above - under for under, above in pairwise(totals))
    return Latencies(wanted.bounds_s, counts, sum_s)


def _by_table(
    found: Found,
    wanted: MetricSpec,
    label: str = metrics.TABLE,
    counts: Callable[[str], bool] = lambda value: True,
) -> dict[str, float]:
    totals: dict[str, float] = defaultdict(float)
    for sample in found.get(wanted.sample, ()):
        if counts(sample.labels[label]):
            totals[sample.labels[metrics.TABLE]] += _amount(sample)
    return totals


def _amount(sample: Sample) -> float:
    if not 0.0 <= sample.value < math.inf:
        raise ValueError(f"{sample.name} is {sample.value}")
    return sample.value
