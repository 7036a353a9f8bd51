"""The table of aims: what our engine's figures are compared with, and what came of each row."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from bench.gpu.peers.cells import (
    ADAPTIVE,
    AGREEMENTS,
    BATCHES,
    PEERS,
    PREFILL_BATCHES,
    RECORDED,
    Cell,
    Engine,
    Load,
    Mode,
    head_name,
)
from bench.gpu.peers.results.figures import FIRST_TOKEN_MS, Figure, State

OWN_FIXED = (Mode.FIXED_1, Mode.FIXED_3, Mode.FIXED_7)
COMPARED_STREAMS = 64


class Verdict(StrEnum):
    """What came of an aim, the worst last."""

    MET = "met"
    EQUAL = "equal"  # each median is within the range of the other side
    NOT_MEASURED = "not_measured"
    NOT_RUN = "not_run"
    MISSED = "missed"


class Quantity(StrEnum):
    """What of a cell is compared."""

    RATE = "tokens per second"
    FIRST_TOKEN_P99 = "p99 time to first token"  # the smaller, the better


@dataclass(frozen=True, slots=True)
class Aim:
    """A ratio of one of our cells to the best of others: at least that, of times at most that."""

    row: str
    ratio: float
    own: Cell
    others: tuple[Cell, ...]
    of: Quantity = Quantity.RATE


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range of a cell's repetitions."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, figure: Figure, quantity: Quantity) -> "Spread":
        """Read it from a figure that was measured."""
        if quantity is Quantity.FIRST_TOKEN_P99:
            times = figure.facts[FIRST_TOKEN_MS]["p99"]
            return cls(statistics.median(times), min(times), max(times))
        assert figure.median is not None
        assert figure.min is not None
        assert figure.max is not None
        return cls(figure.median, figure.min, figure.max)

    def contains(self, other: "Spread") -> bool:
        """Whether the other's median is within this range."""
        return self.min <= other.median <= self.max


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict of one aim, or of a row."""

    verdict: Verdict
    cell: str = ""
    aim: float | None = None
    ratio: float | None = None
    to: str = ""
    reason: str = ""


Figures = Mapping[Cell, Figure]


def aims() -> list[Aim]:
    """Return all aims in the order of the table."""
    return [
        *_each("plain decoding", 1.0, _decode(Mode.PLAIN), BATCHES),
        *_each("prefill of 1,000 tokens", 0.95, _prefill, PREFILL_BATCHES),
        *(
            aim
            for head in _HEADS
            for aim in _each("fixed 3 draft steps", 1.05, _decode(Mode.FIXED_3, head), BATCHES)
        ),
        *_goodput(),
        *_best_fixed(),
        Aim("varying acceptance", 1.15, _varying(Engine.OWN), tuple(_varying_peers())),
        *(
            Aim(f"HTTP, {one}", 1.0, _http(Engine.OWN), tuple(map(_http, PEERS)), one)
            for one in Quantity
        ),
    ]


def judge(figures: Figures, unmeasured: str) -> dict[str, dict[str, Any]]:
    """Return by row its verdict, the worst of its cells, and the cells.

    Args:
        unmeasured: why cells without a figure have none.
    """
    outcomes: dict[str, list[Outcome]] = {}
    for aim in aims():
        outcomes.setdefault(aim.row, []).append(outcome_of(aim, figures, unmeasured))
    return {row: _row(of_row) for row, of_row in outcomes.items()}


def outcome_of(aim: Aim, figures: Figures, unmeasured: str) -> Outcome:
    """Compare our figure of an aim with the best of the others.

    Without a figure of each of them nothing is decided: the missing one may be the best.
    """
    missing = [cell for cell in (aim.own, *aim.others) if cell not in figures]
    if missing:
        reason = f"{missing[0]}: {unmeasured}"
        return Outcome(Verdict.NOT_MEASURED, str(aim.own), aim.ratio, reason=reason)
    for cell in (aim.own, *aim.others):
        if why := _unusable(figures[cell]):
            reason = f"{cell}: {why}"
            return Outcome(Verdict.NOT_RUN, str(aim.own), aim.ratio, reason=reason)
    own = Spread.of(figures[aim.own], aim.of)
    spreads = {cell: Spread.of(figures[cell], aim.of) for cell in aim.others}
    choose = min if aim.of is Quantity.FIRST_TOKEN_P99 else max
    to = choose(spreads, key=lambda cell: spreads[cell].median)
    ratio = own.median / spreads[to].median
    verdict = _verdict(own, spreads[to], ratio, aim)
    return Outcome(verdict, str(aim.own), aim.ratio, round(ratio, 3), str(to))


def _unusable(figure: Figure) -> str:
    """Return why a figure cannot be compared; empty if it can."""
    if figure.state is State.NOT_RUN:
        return figure.reason
    return f"{figure.wrong} of {figure.tokens} tokens are wrong" if figure.wrong else ""


def _verdict(own: Spread, best: Spread, ratio: float, aim: Aim) -> Verdict:
    if own.contains(best) and best.contains(own):
        return Verdict.EQUAL
    met = ratio <= aim.ratio if aim.of is Quantity.FIRST_TOKEN_P99 else ratio >= aim.ratio
    return Verdict.MET if met else Verdict.MISSED


def _row(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    order = [*Verdict]
    worst = max(outcomes, key=lambda one: order.index(one.verdict))
    return {"verdict": worst.verdict, "cells": [asdict(one) for one in outcomes]}


_HEADS = tuple(head_name(one) for one in AGREEMENTS)
CellOf = Callable[[Engine, int], Cell]


def _decode(mode: Mode, head: str = "") -> CellOf:
    return lambda engine, batch: Cell(engine, mode, Load.DECODE, batch, head)


def _prefill(engine: Engine, batch: int) -> Cell:
    return Cell(engine, Mode.PLAIN, Load.PREFILL, batch)


def _each(row: str, ratio: float, cell: CellOf, batches: Sequence[int]) -> Iterator[Aim]:
    for batch in batches:
        others = tuple(cell(peer, batch) for peer in PEERS)
        yield Aim(row, ratio, cell(Engine.OWN, batch), others)


def _goodput() -> Iterator[Aim]:
    for head in _HEADS:
        for batch in BATCHES:
            own, *others = (
                Cell(engine, mode, Load.DECODE, batch, head) for engine, mode in ADAPTIVE.items()
            )
            yield Aim("adaptive modes", 1.10 if batch <= 8 else 1.05, own, tuple(others))


def _best_fixed() -> Iterator[Aim]:
    for head in _HEADS:
        for batch in BATCHES:
            own = Cell(Engine.OWN, Mode.GOODPUT, Load.DECODE, batch, head)
            fixed = [Cell(Engine.OWN, mode, Load.DECODE, batch, head) for mode in OWN_FIXED]
            plain = Cell(Engine.OWN, Mode.PLAIN, Load.DECODE, batch)
            yield Aim("Goodput to our best fixed number", 0.98, own, (plain, *fixed))


def _varying(engine: Engine, mode: Mode | None = None) -> Cell:
    return Cell(engine, mode or ADAPTIVE[engine], Load.VARYING, 0, RECORDED)


def _http(engine: Engine) -> Cell:
    return Cell(engine, ADAPTIVE[engine], Load.HTTP, COMPARED_STREAMS, RECORDED)


def _varying_peers() -> Iterator[Cell]:
    for peer in PEERS:
        yield _varying(peer)
        yield _varying(peer, Mode.FIXED_3)
