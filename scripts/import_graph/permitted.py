"""The counts that are permitted, as `permitted.json` has them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.import_graph.folders import Folder
from scripts.import_graph.sources import SourceError

FILE = "scripts/import_graph/permitted.json"
MAX_OTHER_ENTRIES = 10  # of a folder that the file does not list
COUNTS = ("entries", "arrows", "levels")
TOTALS = ("circles", "upward")

_REMEDIES = {
    "entries": "put modules of one subject into a sub-package",
    "arrows": "put modules that are imported together into a sub-package",
    "levels": "shorten the longest chain of imports",
    "circles": "move what both sides import into a module below them",
    "upward": "move what is imported into a module below both",
}
_WORDS = {"upward": "upward imports"}
_ELSE = "or permit it on purpose with `make import-graph ARGS=--write`"

Counts = dict[str, Any]


def summarise(folders: Sequence[Folder]) -> Counts:
    """The counts by folder, and circles and upward imports of all."""
    return {
        "folders": {one.path: {name: getattr(one, name) for name in COUNTS} for one in folders},
        "circles": sum(len(one.circles) for one in folders),
        "upward": sum(len(one.upward) for one in folders),
    }


def read_permitted(root: Path) -> Counts:
    """Read the permitted counts of a repository."""
    try:
        counts: Counts = json.loads((root / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SourceError(f"{FILE} is missing; write it with --write") from error
    except ValueError as error:
        raise SourceError(f"{FILE} is not JSON: {error}; write it with --write") from error
    return counts


def write_permitted(root: Path, counts: Counts) -> None:
    """Permit the present counts, a line for each folder that is listed."""
    listed = {
        path: one for path, one in counts["folders"].items() if one["entries"] > MAX_OTHER_ENTRIES
    }
    lines = [f"    {json.dumps(path)}: {json.dumps(one)}" for path, one in sorted(listed.items())]
    totals = f'  "circles": {counts["circles"]},\n  "upward": {counts["upward"]}\n'
    text = '{\n  "folders": {\n' + ",\n".join(lines) + "\n  },\n" + totals + "}\n"
    (root / FILE).parent.mkdir(parents=True, exist_ok=True)
    (root / FILE).write_text(text, encoding="utf-8")


def exceeded(counts: Counts, permitted: Counts) -> Iterator[str]:
    """Yield a sentence for every count above the permitted one."""
    for path, one in counts["folders"].items():
        limits = permitted["folders"].get(path, {"entries": MAX_OTHER_ENTRIES})
        yield from (_sentence(path, name, one[name], limits[name]) for name in _above(one, limits))
    for name in _above(counts, {name: permitted[name] for name in TOTALS}):
        yield _sentence("the repository", name, counts[name], permitted[name])


def _above(counts: Mapping[str, int], limits: Mapping[str, int]) -> list[str]:
    return [name for name, limit in limits.items() if counts[name] > limit]


def _sentence(where: str, name: str, value: int, limit: int) -> str:
    return f"{where}: {value} {_WORDS.get(name, name)}, at most {limit}; {_REMEDIES[name]}, {_ELSE}"


def count_fallen(counts: Counts, permitted: Counts) -> int:
    """Count the permitted counts that are above the present ones, or of no folder."""
    folders = counts["folders"]
    fallen: int = sum(
        folders.get(path, {}).get(name, 0) < limit
        for path, limits in permitted["folders"].items()
        for name, limit in limits.items()
    )
    totals: int = sum(counts[name] < permitted[name] for name in TOTALS)
    return fallen + totals
