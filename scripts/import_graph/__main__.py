"""Prints the counts, compares them with those that are permitted, or permits the present ones."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from scripts.import_graph.folders import Folder, measure_folders
from scripts.import_graph.permitted import (
    Counts,
    count_fallen,
    exceeded,
    read_permitted,
    summarise,
    write_permitted,
)
from scripts.import_graph.sources import SourceError, read_sources

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the options ask for; 1 for a count above the permitted one, 2 for unread sources."""
    options = _parser().parse_args(arguments)
    try:
        folders = measure_folders(read_sources(options.root))
        counts = summarise(folders)
        if options.write:
            write_permitted(options.root, counts)
        if options.check:
            return check(counts, read_permitted(options.root))
    except SourceError as error:
        print(f"import graph: {error}", file=sys.stderr)
        return 2
    print("\n".join(report(folders)))
    print(json.dumps(counts))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="import_graph", description="Count imports by folder."
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="count this working tree")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--check", action="store_true", help="fail above the permitted counts")
    action.add_argument("--write", action="store_true", help="permit the present counts")
    return parser


def check(counts: Counts, permitted: Counts) -> int:
    """Print the counts above the permitted ones; 1 if there are any."""
    problems = list(exceeded(counts, permitted))
    totals = f"{counts['circles']} circles, {counts['upward']} upward imports"
    print("\n".join([*problems, f"import graph: {totals}, {len(problems)} counts too high"]))
    if fallen := count_fallen(counts, permitted):
        print(f"{fallen} counts fell; permit no more with `make import-graph ARGS=--write`")
    return int(bool(problems))


def report(folders: Sequence[Folder]) -> Iterator[str]:
    """Yield a table of the folders, most arrows first, then circles and upward imports."""
    width = max((len(one.path) for one in folders), default=0)
    yield f"{'folder':{width}}{'entries':>9}{'arrows':>8}{'levels':>8}"
    for one in sorted(folders, key=lambda one: (-one.arrows, one.path)):
        yield f"{one.path:{width}}{one.entries:9}{one.arrows:8}{one.levels:8}"
    circles = [(one.path, circle) for one in folders for circle in one.circles]
    yield f"circles: {len(circles)}"
    yield from (f"  {path}: {', '.join(circle)}" for path, circle in circles)
    upward = [one for folder in folders for one in folder.upward]
    yield f"upward imports: {len(upward)}"
    yield from (f"  {one.importer}:{one.line} imports {one.imported}" for one in upward)


if __name__ == "__main__":
    sys.exit(main())
