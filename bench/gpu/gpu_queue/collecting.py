"""After a run: its results go to bench/results, and the entries that are done get their marks."""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from bench.gpu.checkout import git, project_version
from bench.gpu.gpu_queue.entries import Entry, QueueError, read_queue
from bench.gpu.gpu_queue.marks import Mark, read_marks, write_marks
from bench.gpu.gpu_queue.result import EntryResult, Status, read_results
from bench.gpu.report import slug

RESULTS = Path("bench/results")


def collect(folder: Path, root: Path) -> Iterator[str]:
    """Copy what a run measured, mark what is done, and yield a line for each change.

    The same folder again changes nothing.

    Raises:
        QueueError: there are no results, or they are not of this checkout's commit; nothing is
            changed.
    """
    entries, marks = read_queue(root), read_marks(root)
    results, commit = read_results(folder), git(root, "rev-parse", "HEAD").strip()
    for file, result in results.items():
        if fault := fault_of(result, entries, commit):
            raise QueueError(f"{file}: {fault}")
    for file, result in results.items():
        if result.reports:
            yield from _copy(file, result, root / RESULTS)
        if result.status is not Status.DONE:
            yield f"not marked: {result.entry}: {result.status}: {result.reason}"
    names = {entry.name for entry in entries}
    kept = {name: mark for name, mark in marks.items() if name in names}
    alone = {entry.name for entry in entries if entry.alone}
    new = kept | _marks(results.values(), alone, project_version(root))
    if new != marks:
        write_marks(root, new)
        for name, mark in new.items():
            if mark != marks.get(name):
                yield f"marked: {name}" if mark.is_complete else f"marked as incomplete: {name}"


def fault_of(result: EntryResult, entries: Iterable[Entry], commit: str) -> str | None:
    """Return why a result cannot be collected, or None."""
    if result.is_dry:
        return "of a dry run, which measures nothing"
    if result.commit != commit:
        return (
            f"commit is {result.commit}, but {commit} is checked out; "
            "check that commit out, or run the queue again (+: with changed files)"
        )
    if result.entry not in [entry.name for entry in entries]:
        return f"the queue has no entry {result.entry}"
    return None


def _marks(results: Iterable[EntryResult], alone: Collection[str], version: str) -> dict[str, Mark]:
    """Return marks of what is done, and of entries alone that have a part of their result."""
    return {
        one.entry: Mark(
            commit=one.commit,
            card=one.card,
            date=one.date,
            command=one.command,
            base=one.base,
            files=one.files,
            version=version,
            is_complete=one.status is Status.DONE,
        )
        for one in results
        if one.status is Status.DONE or (one.entry in alone and one.reports)
    }


def _copy(file: Path, result: EntryResult, folder: Path) -> Iterator[str]:
    """Copy a result under the first free name, unless a copy of it has one."""
    content = file.read_bytes()
    for target in _targets(result, folder):
        if not target.exists():
            target.write_bytes(content)
            yield f"copied: {target.name}"
            return
        if target.read_bytes() == content:
            return


def _targets(result: EntryResult, folder: Path) -> Iterator[Path]:
    stem = f"gpu-{slug(result.card)}-{result.date}-{result.entry}"
    yield folder / f"{stem}.json"
    number = 2
    while True:
        yield folder / f"{stem}-{number}.json"
        number += 1
