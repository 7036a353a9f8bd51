"""The result of a run: a table for people, and one JSON object."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench.gpu.peers.cells import Cell, Engine
from bench.gpu.peers.results.aims import judge
from bench.gpu.peers.results.figures import TINY, Figure, RunFacts
from bench.gpu.report import DRY, replace_file
from bench.tables import aligned

FILE = "peers.json"


@dataclass(frozen=True, slots=True)
class PeersResult:
    """What a run, or several that continued one another, measured."""

    facts: RunFacts
    seconds: float
    figures: Mapping[Cell, Figure]
    recording: Mapping[str, Any]
    is_gpu: bool

    @property
    def wrong(self) -> int:
        """Tokens of all cells that do not follow from the one before."""
        return sum(figure.wrong for figure in self.figures.values())

    def document(self) -> dict[str, Any]:
        """Return it as plain values."""
        why = "no time was left" if self.is_gpu else "aims are for one H100 or H200"
        dry = DRY if self.facts.size == TINY else "on a processor, one thread"
        compared = self.figures if self.is_gpu else {}
        return {
            **asdict(self.facts),
            "measured": "on the device" if self.is_gpu else dry,
            "seconds": round(self.seconds, 1),
            "wrong": self.wrong,
            "cells": [figure.document() for figure in self.figures.values()],
            "aims": judge(compared, why),
            "to_vllm": ratios_to(Engine.VLLM, self.figures),
            "recording": self.recording,
        }

    def table(self) -> str:
        """Return the cells, then the rows of the table of aims."""
        unit = "tokens/s" if self.is_gpu else "tokens/s of processor time"
        rows: list[tuple[str, ...]] = [("cell", unit, "min", "max", "repetitions", "wrong")]
        rows += [_row(figure) for figure in self.figures.values()]
        aims = [("aim", "verdict", "ratios")]
        aims += [
            (row, one["verdict"], _ratios(one["cells"]))
            for row, one in self.document()["aims"].items()
        ]
        ratios = [(cell, f"{ratio:g}") for cell, ratio in self.document()["to_vllm"].items()]
        parts = [aligned(rows), aligned(aims)]
        if ratios:
            parts.append(aligned([("to vLLM", "ratio"), *ratios]))
        return "\n\n".join("\n".join(part) for part in parts)

    def write(self, folder: Path) -> Path:
        """Write the JSON file."""
        file = folder / FILE
        replace_file(file, json.dumps(self.document(), indent=1) + "\n")
        return file


def ratios_to(peer: Engine, figures: Mapping[Cell, Figure]) -> dict[str, float]:
    """Return our tokens per second by those of a peer, where both measured the same cell."""
    found = {}
    for cell, own in figures.items():
        other = figures.get(replace(cell, engine=peer))
        if cell.engine is Engine.OWN and other is not None and own.median and other.median:
            found[str(cell)] = round(own.median / other.median, 3)
    return found


def _row(figure: Figure) -> tuple[str, ...]:
    if figure.median is None:
        return (str(figure.cell), f"not run: {figure.reason}", "", "", "", "")
    numbers = (figure.median, figure.min, figure.max, figure.repetitions, figure.wrong)
    return (str(figure.cell), *(f"{number:g}" for number in numbers))


def _ratios(outcomes: Sequence[Mapping[str, Any]]) -> str:
    return " ".join("-" if one["ratio"] is None else f"{one['ratio']:g}" for one in outcomes)
