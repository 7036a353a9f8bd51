"""Sums over requests by table and stratum; see `specdecode_api.metrics` for what they are for."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from specdecode_api import metrics
from specdecode_api.metrics import SUMS, MetricSpec
from specdecode_engine.batch.request import FinishReason, Output
from specdecode_engine.batch.sequence import Sequence

Stratum = tuple[str, ...]  # values of the labels `metrics.STRATUM`


@dataclass(slots=True)
class TableStats:
    """Counters of one table; the sums of a stratum are in the order of `SUMS`."""

    strata: dict[Stratum, list[float]] = field(default_factory=dict)
    preempted: int = 0


class PerTableStats:
    """The last tables, by hash, and their sums; owned by the engine core."""

    def __init__(self, table: str) -> None:
        self.tables: OrderedDict[str, TableStats] = OrderedDict()
        self.mixed_requests = 0
        self.unsorted_requests = 0
        self._preempted = 0
        self.use(table)

    @property
    def table(self) -> str:
        """Hash of the table in force."""
        return next(reversed(self.tables))

    def use(self, table: str) -> None:
        """Put a table in force; the one that was not for longest gives way."""
        self.tables.setdefault(table, TableStats())
        self.tables.move_to_end(table)
        if len(self.tables) > metrics.MAX_TABLES:
            self.tables.popitem(last=False)

    def note(
        self,
        table: str,
        batch_size: int,
        outputs: Iterable[tuple[Sequence, Output]],
        seconds: float,
    ) -> None:
        """Count a decode step for each of its requests, and the requests that ended in it.

        A failed request is not counted: the output of its last step was dropped.
        """
        bucket = metrics.batch_bucket(batch_size)
        for sequence, output in outputs:
            reason = output.finish_reason
            sequence.stats.add(table, bucket, len(output.token_ids), seconds)
            if reason is not None and reason is not FinishReason.ERROR:
                self.close(sequence)

    def count_preemptions(self, total: int) -> None:
        """Count the requests preempted since the last call for the table in force."""
        if total != self._preempted:
            self.tables[self.table].preempted += total - self._preempted
            self._preempted = total

    def close(self, sequence: Sequence) -> None:
        """Count a request that ended for whatever reason, if a decode step processed it.

        Requests whose client disconnected count too: leaving them out would hide the slowest
        requests of a slow table, whose clients time out.
        """
        stats = sequence.stats
        bucket = stats.main_bucket()
        if bucket is None:
            return
        if stats.is_mixed:
            self.mixed_requests += 1
            return
        table = self.tables.get(stats.table)
        stratum = _stratum(sequence, bucket)
        is_full = table is not None and len(table.strata) >= metrics.MAX_STRATA
        if table is None or (is_full and stratum not in table.strata):
            self.unsorted_requests += 1
            return
        _add(table.strata.setdefault(stratum, [0.0] * len(SUMS)), *stats.by_bucket[bucket])

    def values(self) -> dict[MetricSpec, Mapping[tuple[str, ...], float]]:
        rows = [
            ((name, *stratum), tuple(values))
            for name, table in self.tables.items()
            for stratum, values in table.strata.items()
        ]
        sums: dict[MetricSpec, Mapping[tuple[str, ...], float]] = {
            each: {labels: values[place] for labels, values in rows}
            for place, each in enumerate(metrics.REQUEST_SUMS)
        }
        return sums | {
            metrics.PREEMPTED_REQUESTS: {(at,): each.preempted for at, each in self.tables.items()},
            metrics.MIXED_REQUESTS: {(): self.mixed_requests},
            metrics.UNSORTED_REQUESTS: {(): self.unsorted_requests},
        }


def _stratum(sequence: Sequence, bucket: int) -> Stratum:
    request = sequence.request
    return (
        str(bucket),
        metrics.Sampling.SAMPLED if request.sampling.temperature > 0 else metrics.Sampling.GREEDY,
        metrics.GrammarUse.FREE if request.grammar is None else metrics.GrammarUse.CONSTRAINED,
        metrics.prompt_length(len(request.prompt_ids)),
        request.label,
    )


def _add(sums: list[float], tokens: float, steps: float, seconds: float) -> None:
    for place, amount in enumerate((1, tokens, steps, seconds)):
        sums[place] += amount
