"""From the JSON of both sides to one comparison per figure."""

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

LEAST_SHARE = 0.97  # of the base's performance; below that a figure counts as worse
RENAMED: Mapping[str, str] = {}
"""Names of figures in older commits, and today's."""

_NOT_COMPARED = frozenset(
    {
        *("best_depths", "best_num_steps", "unavailable", "mismatches", "floors", "versions"),
        *("machine", "nproc", "load"),
    }
)
_PEERS = re.compile(r"\b(?:transformers|openvino) ")  # their own rates are not ours to change
_LOWER_IS_BETTER = re.compile(r"_[um]s\b|_ms_per_|verify8_over_1\b|step_to_native|calls_per_step")

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Medians of both sides, and the ratios new / base of all pairs."""

    base: float
    new: float
    ratio: float
    lowest_ratio: float
    highest_ratio: float
    pairs: int
    is_worse: bool


def numbers(document: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield every figure of a result by name; parts of nested objects as `name key`."""
    for key, value in document.items():
        if not prefix and key in _NOT_COMPARED:
            continue
        name = f"{prefix} {key}".strip()
        if isinstance(value, Mapping):
            yield from numbers(value, name)
        elif isinstance(value, int | float) and not _PEERS.search(name):
            yield RENAMED.get(name, name), float(value)


def compare(pairs: Sequence[tuple[Figures, Figures]]) -> dict[str, Comparison]:
    """Compare the figures that both sides have.

    Args:
        pairs: figures of base and new, measured right after each other.
    """
    names = dict.fromkeys(name for base, new in pairs for name in base if name in new)
    return {name: _compare_one(name, pairs) for name in names}


def unmatched(pairs: Sequence[tuple[Figures, Figures]]) -> dict[str, list[str]]:
    """Name the figures that one side alone has: renamed ones belong into `RENAMED`."""
    base = {name for one, _ in pairs for name in one}
    new = {name for _, one in pairs for name in one}
    return {"base": sorted(base - new), "new": sorted(new - base)}


def is_lower_better(name: str) -> bool:
    """Whether a figure is a time; all others are rates and shares."""
    return _LOWER_IS_BETTER.search(name) is not None


def _compare_one(name: str, pairs: Sequence[tuple[Figures, Figures]]) -> Comparison:
    both = [(base[name], new[name]) for base, new in pairs if name in base and name in new]
    ratios = [new / base if base else float("inf") for base, new in both]
    ratio = statistics.median(ratios)
    share = 1 / ratio if is_lower_better(name) and ratio else ratio
    return Comparison(
        base=statistics.median(base for base, _ in both),
        new=statistics.median(new for _, new in both),
        ratio=round(ratio, 4),
        lowest_ratio=round(min(ratios), 4),
        highest_ratio=round(max(ratios), 4),
        pairs=len(both),
        is_worse=share < LEAST_SHARE,
    )
