"""How linear maps in C are cut and prefetched, measured once per processor and kept.

A tuning changes how long a map takes and no bit of what it computes: see tile.c.
"""

import ctypes
import json
import logging
import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Literal, Protocol

log = logging.getLogger(__name__)

CHOICES: Mapping[str, tuple[int, ...]] = {
    "rows": (12, 6, 4),
    "panel": (512, 256, 128, 64),
    "few_panel": (64, 128, 256, 512, 32),
    "streams": (1, 2, 4),
    "ahead": (1024, 2048, 4096, 8192, 16384),
    "level": (0, 1, 2),
    "ahead_int8": (1024, 2048, 4096, 8192, 16384),
    "ahead_int4": (1024, 2048, 4096, 8192, 16384),
    "panel_level": (1, 2),
    "spread": (0, 1),
    "pairs": (1, 0),
    "widen": (1000, 8, 4, 2),
    "widen_int4": (2, 4, 8, 1000),
    "huge_pages": (1, 0),
}
"""What each field of a `Tuning` may be, the preferred value first where all take the same time."""
RUNS = 15
"""Of every map, of which the least counts: other processes disturb some."""
SAME = 0.99
"""A value is preferred to earlier ones when it takes less than this share of their time."""
SAME_PAGES = 0.9
"""The same of small pages: huge ones also leave more of the caches to other data, and a wrong
choice costs a fifth of the speed for as long as the tuning is kept."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """`struct tuning` of tuning.h, and whether packed weights are in huge pages."""

    rows: int = 12
    panel: int = 512
    few_panel: int = 64
    streams: int = 1
    ahead: int = 4096
    level: int = 1
    ahead_int8: int = 8192
    ahead_int4: int = 16384
    panel_level: int = 1
    spread: int = 0
    pairs: int = 1
    widen: int = 1000
    widen_int4: int = 2
    huge_pages: int = 1

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value not in CHOICES[name]:
                raise ValueError(f"tuning: {name} is {value!r}; it must be one of {CHOICES[name]}")

    @classmethod
    def draw(cls, rng: random.Random) -> "Tuning":
        """Draw any tuning; results must not depend on it."""
        return cls(**{name: rng.choice(values) for name, values in CHOICES.items()})

    def in_c(self) -> "_Fields":
        return _Fields(*(value for name, value in asdict(self).items() if name in IN_C))


IN_C = tuple(field.name for field in fields(Tuning) if field.name != "huge_pages")


class _Fields(ctypes.Structure):
    """`struct tuning` of tuning.h."""

    _fields_ = tuple((name, ctypes.c_long) for name in IN_C)


Kind = Literal["floats", "int8", "int4"]


class Timed(Protocol):
    """A machine that maps rows with weights which no cache holds."""

    most_rows: int

    def seconds(self, tuning: Tuning, rows: int, kind: Kind) -> float:
        """Return the time of one map of so many rows with a kind of weights."""
        ...


def measure(machine: Timed) -> Tuning:
    """Choose field by field what takes the least time; the earliest of what takes the same."""
    found = Tuning(rows=min(Tuning().rows, machine.most_rows))
    pages = [replace(found, huge_pages=huge) for huge in CHOICES["huge_pages"]]
    found = _fastest(machine, pages, [(1, "floats")], at_least=SAME_PAGES)
    reading = [
        replace(found, streams=streams, ahead=ahead, level=level)
        for streams in CHOICES["streams"]
        for level in CHOICES["level"]
        for ahead in CHOICES["ahead"]
    ]
    found = _fastest(machine, reading, [(1, "floats"), (5, "floats")])
    distances = [replace(found, ahead_int8=ahead) for ahead in CHOICES["ahead_int8"]]
    found = _fastest(machine, distances, [(1, "int8")])
    distances = [replace(found, ahead_int4=ahead) for ahead in CHOICES["ahead_int4"]]
    found = _fastest(machine, distances, [(1, "int4")])
    found = _fastest(
        machine,
        [replace(found, pairs=pairs) for pairs in CHOICES["pairs"]],
        [(5, "floats"), (16, "floats"), (64, "floats")],
    )
    fetching = [
        replace(found, panel_level=level, spread=spread)
        for level in CHOICES["panel_level"]
        for spread in CHOICES["spread"]
    ]
    found = _fastest(machine, fetching, [(8, "floats"), (16, "floats")])
    heights = [rows for rows in CHOICES["rows"] if rows <= machine.most_rows]
    tiles = [replace(found, rows=rows) for rows in heights]
    found = _fastest(machine, tiles, [(16, "floats"), (64, "floats")])
    panels = [replace(found, few_panel=panel) for panel in CHOICES["few_panel"]]
    found = _fastest(machine, panels, [(8, "floats"), (12, "floats")])
    panels = [replace(found, panel=panel) for panel in CHOICES["panel"]]
    found = _fastest(machine, panels, [(16, "floats"), (64, "floats")])
    widening = [replace(found, widen=tiles) for tiles in CHOICES["widen"]]
    found = _fastest(
        machine, widening, [(16, "floats"), (64, "floats"), (16, "int8"), (64, "int8")]
    )
    widening = [replace(found, widen_int4=tiles) for tiles in CHOICES["widen_int4"]]
    return _fastest(machine, widening, [(16, "int4"), (64, "int4")])


def _fastest(
    machine: Timed,
    tunings: Sequence[Tuning],
    maps: Sequence[tuple[int, Kind]],
    at_least: float = SAME,
) -> Tuning:
    """Compare products of the least times of maps; all tunings take turns."""
    least = [[math.inf] * len(maps) for _ in tunings]
    for _ in range(RUNS):
        for tuning, times in zip(tunings, least, strict=True):
            for at, (rows, kind) in enumerate(maps):
                times[at] = min(times[at], machine.seconds(tuning, rows, kind))
    costs = [math.prod(times) for times in least]
    chosen = 0
    for at, cost in enumerate(costs):
        if cost < costs[chosen] * at_least:
            chosen = at
    return tunings[chosen]


def read(file: Path) -> Tuning | None:
    """Read a kept tuning; None if there is none, or it is damaged."""
    try:
        return Tuning(**json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        log.warning("the kernels are tuned again, as %s is damaged: %s", file, error)
        return None


def keep(tuning: Tuning, file: Path) -> None:
    """Write a tuning for later starts, if the folder can be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = file.with_suffix(f".{time.monotonic_ns()}.part")
        part.write_text(json.dumps(asdict(tuning)) + "\n", encoding="utf-8")
        part.replace(file)
    except OSError as error:
        log.warning("the tuning of the kernels is measured at every start: %s", error)
