"""Results as text, JSON, Markdown and a plot."""

import datetime
import json
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.cpu.peers.plots import draw_rates
from bench.cpu.peers.targets import flatten, table_rows
from bench.cpu.peers.versus import Versus
from bench.tables import aligned
from checks.harness.machine import processor_model

RESULTS = Path(__file__).resolve().parents[2] / "results"
_ADAPTIVE = ("to_best_fixed", "to_no_speculation")


@dataclass(slots=True)
class Report:
    """What was measured so far.

    `load` is that of the minute before the measurement.
    """

    load: float = 0.0
    figures: dict[str, object] = field(default_factory=dict)
    contests: dict[str, Versus] = field(default_factory=dict)  # by number type
    machine: dict[str, object] = field(default_factory=dict)

    def add_machine(self, wall_s: float) -> None:
        """Note where and when this was: the processor's model, nothing that names the machine."""
        self.machine = {
            "date": datetime.date.today().isoformat(),
            "processor": processor_model(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "load_average": round(self.load, 2),
            "wall_s": round(wall_s, 1),
        }

    def summary(self) -> dict[str, object]:
        """Everything in one object; figures at the top."""
        adaptive = self.figures.get("adaptive")
        brief = dict(self.figures)
        if isinstance(adaptive, dict):
            brief["adaptive"] = {
                cell: {name: one[name] for name in _ADAPTIVE} for cell, one in adaptive.items()
            }
        contests = self.contests
        return {
            **brief,
            "processor": processor_model(),
            "nproc": os.cpu_count(),
            "load": round(self.load, 2),
            "rates": {dtype: one.rates for dtype, one in contests.items()},
            "best_depths": {dtype: one.depths for dtype, one in contests.items()},
            "unavailable": {dtype: one.unavailable for dtype, one in contests.items()},
            "mismatches": {dtype: one.mismatches for dtype, one in contests.items()},
            "floors": {dtype: [asdict(f) for f in one.floors] for dtype, one in contests.items()},
            "versions": {k: v for one in contests.values() for k, v in one.versions.items()},
            "machine": self.machine,
        }

    def text(self) -> str:
        """Tables for people."""
        return (
            "\n".join("\n" + "\n".join(aligned(rows)) for _, rows in self.tables())
            + self._remarks()
        )

    def markdown(self) -> str:
        """The same as a page."""
        parts = ["# Engine on a CPU, compared with its peers", _machine_line(self.machine)]
        for title, rows in self.tables():
            parts.append(f"## {title}\n\n{_markdown_table(rows)}")
        parts.append(self._remarks().strip() or "No remarks.")
        return "\n\n".join(parts) + "\n"

    def tables(self) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
        """Yield titles and rows, the first row being the head."""
        head = ("figure", "measured", "target", "")
        yield "Figures (float32)", [head, *table_rows(flatten(self.figures))]
        other = self.figures.get("bfloat16")
        if isinstance(other, dict):
            yield "Figures (bfloat16)", [head, *table_rows(flatten(other))]
        for dtype, versus in self.contests.items():
            rows: list[tuple[str, ...]] = [("who", "tokens per CPU s", "least CPU ms per token")]
            rows += [
                (name, f"{row['tokens_per_cpu_s']:.1f}", f"{row['least_cpu_ms_per_token']:.2f}")
                for name, row in versus.rates.items()
            ]
            yield f"Rates ({dtype})", rows
        for name in ("adaptive", "mixed", "algorithms"):
            cells = self.figures.get(name)
            if isinstance(cells, dict):
                yield name.capitalize(), _cell_rows(cells)

    def _remarks(self) -> str:
        lines = []
        for dtype, versus in self.contests.items():
            for who, why in versus.unavailable.items():
                lines.append(f"not measured ({dtype}): {who}: {why}")
            for one in versus.mismatches:
                lines.append(f"tokens differ from ours ({dtype}): {one}")
            if dtype == "float32" and not versus.mismatches:
                lines.append("float32: everybody answered with the same tokens")
            if versus.floors:
                floor = versus.floors[len(versus.floors) // 2]
                lines.append(
                    f"limits ({dtype} run): read {floor.read_gb_s:.1f} GB/s, copy "
                    f"{floor.copy_gb_s:.1f} GB/s, products {floor.product_gflop_s:.0f} GFLOP/s"
                )
        return "\n" + "\n".join(lines)


def write_results(report: Report, folder: Path) -> list[Path]:
    """Write JSON, Markdown and, where there was a contest, a plot; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    base = folder / f"engine-cpu-{report.machine['date']}"
    json_path, text_path = base.with_suffix(".json"), base.with_suffix(".md")
    json_path.write_text(json.dumps(report.summary(), indent=1, ensure_ascii=False) + "\n")
    text_path.write_text(report.markdown())
    paths = [json_path, text_path]
    if report.contests:
        paths.append(base.with_suffix(".png"))
        draw_rates({dtype: one.rates for dtype, one in report.contests.items()}, paths[-1])
    return paths


def _cell_rows(cells: dict[str, dict[str, float]]) -> list[tuple[str, ...]]:
    names = list(dict.fromkeys(name for cell in cells.values() for name in cell))
    rows = [(cell, *(f"{one.get(name, '–')}" for name in names)) for cell, one in cells.items()]
    return [("cell", *names), *rows]


def _machine_line(machine: dict[str, object]) -> str:
    return ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in machine.items())


def _markdown_table(rows: list[tuple[str, ...]]) -> str:
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body])
