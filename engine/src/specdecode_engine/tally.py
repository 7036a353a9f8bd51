"""Sums over requests by table and stratum; see `specdecode_api.series` for what they are for."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from specdecode_api.series import (
    MAX_STRATA,
    MAX_TABLES,
    SUMS,
    GrammarUse,
    Sampling,
    batch_band,
    prompt_length,
)
from specdecode_engine.portions import Portion
from specdecode_engine.request import FinishReason, Output
from specdecode_engine.sequence import Sequence
from specdecode_engine.step import Emission

Stratum = tuple[str, ...]
"""Values of the labels `series.STRATUM`."""


@dataclass(slots=True)
class TableTally:
    """What is counted under one table; the sums of a stratum are in the order of `SUMS`."""

    strata: dict[Stratum, list[float]] = field(default_factory=dict)
    retracted: int = 0


class Tally:
    """The last tables and their sums; owned by the engine core.

    Args:
        table: hash of the one in force at first.
    """

    def __init__(self, table: str) -> None:
        self.tables: OrderedDict[str, TableTally] = OrderedDict()
        self.mixed_requests = 0
        self.unsorted_requests = 0
        self._retracted = 0
        self.use(table)

    @property
    def table(self) -> str:
        """Hash of the table in force."""
        return next(reversed(self.tables))

    def use(self, table: str) -> None:
        """Put a table in force; the one that was not for longest gives way."""
        self.tables.setdefault(table, TableTally())
        self.tables.move_to_end(table)
        if len(self.tables) > MAX_TABLES:
            self.tables.popitem(last=False)

    def note(
        self,
        table: str,
        batch_size: int,
        emissions: Iterable[Emission],
        outputs: Iterable[Output],
        seconds: float,
    ) -> None:
        """Count a decode round for each of its requests, and the requests that ended in it.

        A request that failed counts for nothing: what its last round added was dropped.
        """
        band = batch_band(batch_size)
        for emission, output in zip(emissions, outputs, strict=True):
            sequence, reason = emission.sequence, output.finish_reason
            sequence.portions.note(table, band, len(output.token_ids), seconds)
            if reason is not None and reason is not FinishReason.ERROR:
                self.close(sequence)

    def note_retractions(self, total: int) -> None:
        """Charge the table in force with the requests sent back since this was told last."""
        if total != self._retracted:
            self.tables[self.table].retracted += total - self._retracted
            self._retracted = total

    def close(self, sequence: Sequence) -> None:
        """Count a request that left, whyever, if a decode round worked on it.

        Requests whose client left count too: to leave them out would hide the slowest of a slow
        table, whose clients lose patience.
        """
        portions = sequence.portions
        found = portions.main()
        if found is None:
            return
        if portions.is_mixed:
            self.mixed_requests += 1
            return
        band, portion = found
        table = self.tables.get(portions.table)
        stratum = _stratum(sequence, band)
        if table is None or (stratum not in table.strata and len(table.strata) >= MAX_STRATA):
            self.unsorted_requests += 1
            return
        _add(table.strata.setdefault(stratum, [0.0] * len(SUMS)), portion)


def _stratum(sequence: Sequence, band: int) -> Stratum:
    request = sequence.request
    return (
        str(band),
        Sampling.SAMPLED if request.sampling.temperature > 0 else Sampling.GREEDY,
        GrammarUse.FREE if request.grammar is None else GrammarUse.CONSTRAINED,
        prompt_length(len(request.prompt_ids)),
        request.label,
    )


def _add(sums: list[float], portion: Portion) -> None:
    tokens, rounds, seconds = portion.tokens, portion.rounds, portion.seconds
    products = (
        1, tokens, rounds, seconds, tokens * tokens, rounds * rounds, seconds * seconds,
        tokens * rounds, seconds * tokens,
    )  # fmt: skip
    for place, product in enumerate(products):
        sums[place] += product
