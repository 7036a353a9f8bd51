"""The results as one JSON file and one Markdown file, replaced as a whole after every section."""

import json
import math
import os
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.gpu.record import Row, SectionRecord, State

DRY = "dry run, not a measurement"


@dataclass(frozen=True, slots=True)
class Run:
    """What the numbers belong to."""

    device: str
    date: str  # ISO
    is_dry: bool
    versions: dict[str, str]
    commit: str

    @property
    def stem(self) -> str:
        """Name of both files, without the ending."""
        name = "dry-run" if self.is_dry else self.device
        return f"gpu-{slug(name)}-{self.date}"


@dataclass(frozen=True, slots=True)
class Report:
    """Where the results of one run go."""

    run: Run
    folder: Path

    @property
    def json_file(self) -> Path:
        """The machine's copy."""
        return self.folder / f"{self.run.stem}.json"

    @property
    def markdown_file(self) -> Path:
        """The people's copy."""
        return self.folder / f"{self.run.stem}.md"

    def write(self, records: tuple[SectionRecord, ...], state: str) -> None:
        """Replace both files; a kill at any time leaves the ones before or the new ones."""
        self.folder.mkdir(parents=True, exist_ok=True)
        document = json.dumps(self.document(records, state), indent=1, allow_nan=False)
        replace_file(self.json_file, document)
        replace_file(self.markdown_file, self.markdown(records, state))

    def document(self, records: tuple[SectionRecord, ...], state: str) -> dict[str, object]:
        """Return all of it as plain values."""
        return {
            **asdict(self.run),
            "measured": DRY if self.run.is_dry else "on the device",
            "state": state,
            "sections": [_section(record, self.run.is_dry) for record in records],
        }

    def markdown(self, records: tuple[SectionRecord, ...], state: str) -> str:
        """Return it as tables."""
        run = self.run
        versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
        headings = _headings(run.is_dry)
        lines = [f"# {run.device}, {run.date}", "", f"{versions}; commit {run.commit}; {state}."]
        if run.is_dry:
            lines += ["", f"**Every number is of a {DRY}.**"]
        for record in records:
            lines += ["", *_tables(record, headings)]
        return "\n".join(lines) + "\n"


def slug(name: str) -> str:
    """Return a device's name as a part of a file's name."""
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


def _section(record: SectionRecord, is_dry: bool) -> dict[str, object]:
    rows = [
        {
            **asdict(row),
            "measured": _plain(row.measured),
            "ratio": _plain(row.ratio),
            "target": row.target and str(row.target),
            "is_met": None if is_dry else row.is_met,
            "is_measurement": not is_dry and row.measured is not None,
        }
        for row in record.rows
    ]
    return {**asdict(record), "state": str(record.state), "rows": rows}


def _plain(value: float | None) -> float | str | None:
    """JSON knows no infinity."""
    return value if value is None or math.isfinite(value) else str(value)


def _headings(is_dry: bool) -> tuple[str, ...]:
    measured = f"number ({DRY})" if is_dry else "measured"
    met = () if is_dry else ("met?",)
    return ("metric", measured, "limit", "ratio", "target", "peers", *met)


def _tables(record: SectionRecord, headings: tuple[str, ...]) -> list[str]:
    lines = [f"## {record.title}", "", f"{record.state}, {record.seconds:.1f} s."]
    if record.state is not State.DONE:
        lines += ["", "```", record.reason, "```"]
    if record.rows:
        lines += ["", _line(headings), "|" + "---|" * len(headings)]
        lines += [_line(_cells(row)[: len(headings)]) for row in record.rows]
    return lines


def _cells(row: Row) -> tuple[str, ...]:
    beside = [f"{name} {_number(value)}" for name, value in row.peers.items()]
    met = {None: "", True: "yes", False: "NO"}[row.is_met]
    return (
        row.metric,
        "not measured" if row.measured is None else f"{row.measured:.4g} {row.unit}".strip(),
        _number(row.limit),
        _number(row.ratio),
        str(row.target or ""),
        "; ".join([*beside, row.note] if row.note else beside),
        met,
    )


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def replace_file(file: Path, text: str) -> None:
    """Write a file so that a kill at any time leaves the one before or the new one."""
    beside = file.with_suffix(f"{file.suffix}.{threading.get_ident()}.new")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, file)
