"""Figures of cells: the file to which each is appended at once, and which a later run continues."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from bench.gpu.checkout import CHANGED, UNKNOWN
from bench.gpu.peers.cells import Cell
from bench.gpu.report import replace_file

FILE = "figures.jsonl"
TINY = "tiny"
FIRST_TOKEN_MS = "first_token_ms"
"""Among the facts of a cell over HTTP: by quantile, the time to first token of each repetition."""
QUANTILES = {"p50": 0.50, "p99": 0.99}


class FiguresError(Exception):
    """A file of figures cannot be continued; the text has place and remedy."""


class State(StrEnum):
    """Whether a cell has a figure."""

    MEASURED = "measured"
    NOT_RUN = "not_run"  # its engine did not start, or failed at it


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What the figures of a run are of."""

    commit: str
    card: str  # or processor
    versions: Mapping[str, str]
    clock: str = "seconds"  # or "seconds of processor time"
    size: str = "8b"


@dataclass(frozen=True, slots=True)
class Figure:
    """Tokens per second of one cell, over its repetitions."""

    cell: Cell
    state: State
    reason: str = ""
    median: float | None = None
    min: float | None = None
    max: float | None = None
    repetitions: int = 0
    wrong: int = 0  # tokens that do not follow from the one before
    tokens: int = 0  # that were checked
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def measured(
        cls, cell: Cell, rates: Sequence[float], wrong: int, tokens: int, facts: Mapping[str, Any]
    ) -> "Figure":
        """Return the figure of a cell's repetitions."""
        return cls(
            cell,
            State.MEASURED,
            median=round(statistics.median(rates), 2),
            min=round(min(rates), 2),
            max=round(max(rates), 2),
            repetitions=len(rates),
            wrong=wrong,
            tokens=tokens,
            facts=facts,
        )

    @classmethod
    def not_run(cls, cell: Cell, reason: str) -> "Figure":
        """Return the figure of a cell without one."""
        return cls(cell, State.NOT_RUN, reason)

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> "Figure":
        """Read it from a line of JSON."""
        fields = dict(document)
        cell, state = Cell.read(fields.pop("cell")), State(fields.pop("state"))
        return cls(cell, state, **fields)

    def document(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)


class FiguresFile:
    """Figures by cell; the last line of a cell counts.

    Args:
        folder: holds the file; the first line has the facts of its run.

    Raises:
        FiguresError: the file is of another commit, card or version, or of a commit that is not
            known exactly, or malformed.
    """

    def __init__(self, folder: Path, facts: RunFacts) -> None:
        self._file = folder / FILE
        self.figures: dict[Cell, Figure] = {}
        if self._file.exists() and self._file.stat().st_size:
            self._read(facts)
            return
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(self._file, json.dumps({"run": asdict(facts)}) + "\n")

    def add(self, figure: Figure) -> None:
        """Append a figure."""
        self.figures[figure.cell] = figure
        with self._file.open("a") as file:
            file.write(json.dumps(figure.document()) + "\n")

    def is_measured(self, cell: Cell) -> bool:
        """Whether a cell has a figure already, without a wrong token."""
        figure = self.figures.get(cell)
        return figure is not None and figure.state is State.MEASURED and not figure.wrong

    def _read(self, facts: RunFacts) -> None:
        try:
            first, *lines = [json.loads(line) for line in self._whole_lines()]
            self._check(first["run"], asdict(facts))
            figures = [Figure.read(line) for line in lines]
        except (ValueError, KeyError, TypeError) as error:
            raise FiguresError(
                f"{self._file}: not a file of figures ({type(error).__name__}: {error}); remove it"
            ) from error
        self.figures = {figure.cell: figure for figure in figures}

    def _whole_lines(self) -> list[str]:
        """Return the lines; cut off a last one that is not finished, as after a kill."""
        text = self._file.read_text()
        whole = text[: text.rfind("\n") + 1]
        if whole and whole != text:
            replace_file(self._file, whole)
        return (whole or text).splitlines()

    def _check(self, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
        different = [*_differences(there, here)]
        if not different and not _is_exact(here):
            different = [f"commit is {here['commit']}, whose files may have changed since"]
        if different:
            raise FiguresError(
                f"{self._file}: {'; '.join(different)}; continue on the same, or name another --out"
            )


def _is_exact(facts: Mapping[str, Any]) -> bool:
    """Whether a commit names the files that are measured; at tiny sizes nothing is measured."""
    commit = facts["commit"]
    return facts["size"] == TINY or not (commit == UNKNOWN or commit.endswith(CHANGED))


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Name what differs: facts, and versions by package."""
    first, second = ({**one, **one["versions"]} for one in (there, here))
    names = [name for name in dict.fromkeys([*first, *second]) if name != "versions"]
    return [
        f"{name} is {first.get(name, 'missing')} there and {second.get(name, 'missing')} here"
        for name in names
        if first.get(name) != second.get(name)
    ]
