"""Entries of the queue: what each decides, its command and time, and the files that it depends on.

An error has the file, the line of the entry, its name and the key.
"""

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

FILE = PurePosixPath("bench/gpu/queue.toml")
MAX_SECONDS = 120
MAX_ALONE_SECONDS = 540
"""Of an entry that has a run for itself."""
HEADER = "[[entry]]"
START_S = 5.0
"""What an entry takes besides its own time: to start, to be ended, and to write its result."""

Word = Annotated[str, Field(min_length=1)]
Seconds = Annotated[float, Field(gt=0, le=MAX_ALONE_SECONDS, allow_inf_nan=False)]


class QueueError(Exception):
    """The queue, or what belongs to it, is malformed; the text has place and remedy."""


class Base(BaseModel):
    """An older build to compare with, and the command for the same there."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{8,40}$")]
    command: Annotated[list[Word], Field(min_length=1)]


class Entry(BaseModel):
    """What only a GPU can show.

    A command is a program of the checkout with its arguments; it also gets `--seconds`, `--out`,
    `--carry` and in a dry run `--dry-run`, as `bench/gpu` takes them. With `base`, that commit's
    command runs next, and the entry's times are for both.

    With `alone`, no other entry is run before or after it, and a later run continues its folder of
    results. It is due once per minor version of this project, whatever its files, as they are
    most of the engine. After an incomplete result it is last, so that it blocks no other entry.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,39}$")]
    decides: Word
    command: Annotated[list[Word], Field(min_length=1)]
    seconds: Seconds  # expected
    limit: Seconds = MAX_SECONDS  # after which it is ended
    files: Annotated[list[Word], Field(min_length=1)]  # or folders
    base: Base | None = None
    alone: bool = False
    needs: list[Word] = []  # files that git ignores; without them it is not run

    @model_validator(mode="after")
    def _fits_its_limit(self) -> "Entry":
        most = MAX_ALONE_SECONDS if self.alone else MAX_SECONDS
        if self.limit > most:
            raise ValueError(f"limit is {self.limit:g}, above {most}")
        if self.seconds > self.limit:
            raise ValueError(f"seconds is {self.seconds:g}, above limit, {self.limit:g}")
        return self


def read_queue(root: Path) -> tuple[Entry, ...]:
    """Read the queue of a checkout, most valuable entry first.

    Raises:
        QueueError: it is malformed; the text has a line per error.
    """
    text = (root / FILE).read_text(encoding="utf-8")
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise QueueError(f"{FILE}: {error}") from error
    tables = document.pop("entry", [])
    if document or not isinstance(tables, list):
        raise QueueError(f"{FILE}: contains {', '.join(document) or 'no list'}, not {HEADER} alone")
    entries, errors = list[Entry](), list[str]()
    for table, line in zip(tables, _lines(text), strict=True):
        found = _entry(table)
        faults = found if isinstance(found, list) else [*_faults(found, entries, root)]
        name = table.get("name", "without a name")
        errors += [f"{FILE}:{line}: entry {name}: {fault}" for fault in faults]
        if isinstance(found, Entry):
            entries.append(found)
    if errors:
        raise QueueError("\n".join(errors))
    return tuple(entries)


def next_entry(waiting: Sequence[Entry], left_s: float) -> Entry | None:
    """Return the first entry whose expected time fits into what is left."""
    return next((entry for entry in waiting if entry.seconds + START_S <= left_s), None)


def missing_files(entry: Entry, root: Path) -> list[str]:
    """List what an entry needs and is not there."""
    return [name for name in entry.needs if not (root / name).exists()]


def limit_of(entry: Entry, left_s: float) -> float:
    """Return the seconds after which an entry that begins now is ended."""
    return min(entry.limit, left_s - START_S)


def _lines(text: str) -> list[int]:
    """Return the line of each entry's header, from 1."""
    lines = enumerate(text.splitlines(), start=1)
    return [number for number, line in lines if line.split("#")[0].strip() == HEADER]


def _entry(table: dict[str, Any]) -> Entry | list[str]:
    try:
        return Entry.model_validate(table)
    except ValidationError as error:
        return [
            ": ".join([*(str(part) for part in one["loc"]), one["msg"]]) for one in error.errors()
        ]


def _faults(entry: Entry, before: list[Entry], root: Path) -> Iterator[str]:
    if entry.name in [one.name for one in before]:
        yield "name: an entry above has the same; rename one"
    for file in entry.files:
        if fault := _fault_of_path(file, root):
            yield f"files: {fault}"
    if fault := _fault_of_path(entry.command[0], root):
        yield f"command: {fault}"


def _fault_of_path(name: str, root: Path) -> str | None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        return f"{name} is not a path below the repository's root"
    return None if (root / path).exists() else f"{name} does not exist"
