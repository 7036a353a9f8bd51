"""The metrics of one engine at one time: totals since its process started, by arm."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import itemgetter
from types import MappingProxyType
from typing import NamedTuple

from specdecode_api import metrics
from specdecode_api.metrics import MetricSpec, core
from specdecode_operator.fleet.exposition import BadScrape, Sample, Samples
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


READ = frozenset(
    each.sample
    for each in (
        *metrics.IDENTITY, core.EMITTED_TOKENS, core.DRAFT_UNFIT, *DECODE_STEPS, *POSITIONS,
        *metrics.REQUEST_SUMS, *LATENCIES, metrics.REQUESTS, metrics.HTTP_ERRORS,
        metrics.PREEMPTED_REQUESTS,
    )
)  # fmt: skip
READ |= {f"{each.family}_sum" for each in LATENCIES}
"""Names of the samples that a reading is made of."""


class BucketTotals(NamedTuple):
    """Decode steps with one number of draft steps in one batch bucket."""

    steps: float = 0.0
    request_steps: float = 0.0
    busy_seconds: float = 0.0


class PositionTotals(NamedTuple):
    """Draft tokens at one position whose predecessors were accepted, and those accepted."""

    reached: float = 0.0
    accepted: float = 0.0


@dataclass(frozen=True, slots=True)
class Reading:
    """The complete metrics of one pod; an incomplete response gives no reading.

    `key` is what the pod runs now; `arms` contains what it counted since `start_s` under every
    table that it still exports. The keys of `step_totals` are (batch bucket, draft steps), those of
    `positions` (batch bucket, position); `facts` are the labels of `metrics.INFO`.
    """

    pod_uid: str
    start_s: float  # since 1970
    key: ArmKey
    arms: Mapping[ArmKey, ArmEvidence]
    step_totals: Mapping[tuple[int, int], BucketTotals] = field(
        default_factory=lambda: MappingProxyType({})
    )
    positions: Mapping[tuple[int, int], PositionTotals] = field(
        default_factory=lambda: MappingProxyType({})
    )
    facts: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    emitted_tokens: float = 0.0
    """Output tokens of decode steps."""
    request_steps: float = 0.0
    """Decode steps of requests: a step of several requests counts for each."""


@dataclass(frozen=True, slots=True)
class Scraped:
    """Readings of the pods that responded; the errors of the others by their names."""

    readings: tuple[Reading, ...] = ()
    failures: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def reading_of(pod_uid: str, samples: Samples) -> Reading:
    """Build the reading of one pod from its samples of `READ`.

    Raises:
        BadScrape: a sample is missing or invalid; nothing of the response may be counted.
    """
    try:
        return _reading(pod_uid, samples)
    except (KeyError, ValueError) as error:
        raise BadScrape(f"pod {pod_uid}: {error}; is it an engine of this release?") from error


def _reading(pod_uid: str, found: Samples) -> Reading:
    facts = _only(found, metrics.INFO).labels
    config_hash = facts["config_hash"]
    key = ArmKey(config_hash, facts["table_hash"])
    arms = {key: ArmEvidence()} | _arms(found, config_hash)
    unfit = sum(sample.value for sample in found.get(core.DRAFT_UNFIT.sample, ()))
    arms[key] = replace(arms[key], unfit_drafts=unfit)
    step_totals = {at: BucketTotals(*row) for at, row in _cells(found, DECODE_STEPS).items()}
    return Reading(
        pod_uid=pod_uid,
        start_s=_only(found, metrics.PROCESS_START).value,
        key=key,
        arms=arms,
        step_totals=step_totals,
        positions={at: PositionTotals(*row) for at, row in _cells(found, POSITIONS).items()},
        facts=dict(facts),
        emitted_tokens=_amount(core.EMITTED_TOKENS, _only(found, core.EMITTED_TOKENS)),
        request_steps=sum(each.request_steps for each in step_totals.values()),
    )


def _only(found: Samples, wanted: MetricSpec) -> Sample:
    samples = found.get(wanted.sample, [])
    if len(samples) != 1:
        raise ValueError(f"{wanted.sample} has {len(samples)} values instead of one")
    return samples[0]


def _arms(found: Samples, config_hash: str) -> dict[ArmKey, ArmEvidence]:
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
    """Whether the configuration may be the cause; a pod that loads or drains responds with 503."""
    return status >= "500" and status != "503"


def _strata(found: Samples) -> dict[str, dict[Stratum, RequestSums]]:
    labels = (metrics.TABLE, *metrics.STRATUM)
    arms: dict[str, dict[Stratum, RequestSums]] = defaultdict(dict)
    for (table, bucket, *words), row in _rows(found, metrics.REQUEST_SUMS, labels).items():
        arms[table][Stratum(int(bucket), *words)] = RequestSums(*row)
    return arms


def _cells(found: Samples, wanted: Sequence[MetricSpec]) -> dict[tuple[int, int], list[float]]:
    rows = _rows(found, wanted, wanted[0].labels)
    return {(int(bucket), int(place)): row for (bucket, place), row in rows.items()}


def _rows(
    found: Samples, wanted: Sequence[MetricSpec], labels: Sequence[str]
) -> dict[tuple[str, ...], list[float]]:
    """Values of several series by their labels.

    Raises:
        ValueError: a set of labels has not exactly one value in each series.
    """
    rows: dict[tuple[str, ...], list[float]] = defaultdict(list)
    place_of = itemgetter(*labels)
    for each in wanted:
        for sample in found.get(each.sample, ()):
            rows[place_of(sample.labels)].append(_amount(each, sample))
    for at, row in rows.items():
        if len(row) != len(wanted):
            names = f"{wanted[0].sample} to {wanted[-1].sample}"
            raise ValueError(f"{names} are not complete for {at}")
    return rows


def _latencies(found: Samples, wanted: MetricSpec) -> dict[str, Latencies]:
    cumulative: dict[str, dict[float, float]] = defaultdict(dict)
    for sample in found.get(wanted.sample, ()):
        cumulative[sample.labels[metrics.TABLE]][float(sample.labels["le"])] = _amount(
            wanted, sample
        )
    sums_s = {
        sample.labels[metrics.TABLE]: _amount(wanted, sample)
        for sample in found.get(f"{wanted.family}_sum", ())
    }
    return {table: _by_bucket(wanted, below, sums_s[table]) for table, below in cumulative.items()}


def _by_bucket(wanted: MetricSpec, below: Mapping[float, float], sum_s: float) -> Latencies:
    if tuple(sorted(below)) != (*wanted.bounds, math.inf):
        raise ValueError(f"{wanted.sample} has the bounds {sorted(below)}")
    totals = [0.0, *(below[bound] for bound in sorted(below))]
    counts = tuple(above - under for under, above in pairwise(totals))
    return Latencies(wanted.bounds, counts, sum_s)


def _by_table(
    found: Samples,
    wanted: MetricSpec,
    label: str = metrics.TABLE,
    counts: Callable[[str], bool] = lambda value: True,
) -> dict[str, float]:
    totals: dict[str, float] = defaultdict(float)
    for sample in found.get(wanted.sample, ()):
        if counts(sample.labels[label]):
            totals[sample.labels[metrics.TABLE]] += _amount(wanted, sample)
    return totals


def _amount(wanted: MetricSpec, sample: Sample) -> float:
    if not 0.0 <= sample.value < math.inf:
        raise ValueError(f"{wanted.sample} is {sample.value}")
    return sample.value
