"""The table of aims: what our engine's figures are compared with, and what came of each row."""

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
from bench.gpu.peers.results.figures import Figure, State

OWN_FIXED = (Mode.FIXED_1, Mode.FIXED_3, Mode.FIXED_7)
NO_HTTP = "the load over HTTP has no cells yet"


class Verdict(StrEnum):
    """What came of an aim, the worst last."""

    MET = "met"
    EQUAL = "equal"  # each median is within the range of the other side
    NOT_MEASURED = "not_measured"
    NOT_RUN = "not_run"
    MISSED = "missed"


@dataclass(frozen=True, slots=True)
class Aim:
    """A least ratio of one of our cells to the best of others."""

    row: str
    ratio: float
    own: Cell
    others: tuple[Cell, ...]


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
    """Return all aims in the order of the table, but for those over HTTP."""
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
    ]


def judge(figures: Figures, unmeasured: str) -> dict[str, dict[str, Any]]:
    """Return by row its verdict, the worst of its cells, and the cells.

    Args:
        unmeasured: why cells without a figure have none.
    """
    outcomes: dict[str, list[Outcome]] = {}
    for aim in aims():
        outcomes.setdefault(aim.row, []).append(outcome_of(aim, figures, unmeasured))
    for row in ("HTTP, tokens per second", "HTTP, p99 time to first token"):
        outcomes[row] = [Outcome(Verdict.NOT_MEASURED, reason=NO_HTTP)]
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
    own = figures[aim.own]
    best = max((figures[cell] for cell in aim.others), key=_median)
    ratio = _median(own) / _median(best)
    verdict = _verdict(own, best, ratio, aim.ratio)
    return Outcome(verdict, str(aim.own), aim.ratio, round(ratio, 3), str(best.cell))


def _unusable(figure: Figure) -> str:
    """Return why a figure cannot be compared; empty if it can."""
    if figure.state is State.NOT_RUN:
        return figure.reason
    return f"{figure.wrong} of {figure.tokens} tokens are wrong" if figure.wrong else ""


def _verdict(own: Figure, best: Figure, ratio: float, aim: float) -> Verdict:
    if _is_within(own, best) and _is_within(best, own):
        return Verdict.EQUAL
    return Verdict.MET if ratio >= aim else Verdict.MISSED


def _is_within(one: Figure, other: Figure) -> bool:
    """Whether a median is within the range of other repetitions."""
    assert other.min is not None
    assert other.max is not None
    return other.min <= _median(one) <= other.max


def _median(figure: Figure) -> float:
    assert figure.median is not None
    return figure.median


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


def _varying_peers() -> Iterator[Cell]:
    for peer in PEERS:
        yield _varying(peer)
        yield _varying(peer, Mode.FIXED_3)
