"""`python -m bench.simulation.policy.report`: write bench/results/controller.json into the docs.

Each table stands between `<!-- controller: NAME -->` and `<!-- end -->`; nothing else is touched.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "bench" / "results" / "controller.json"
DOCS = (
    ROOT / "docs" / "controller.md",
    ROOT / "docs" / "decisions" / "0007-goodput-is-the-default.md",
)
MACHINES = {"h100_dense_8b": "H100, dense 8B", "cpu_82m": "CPU, 82M", "moe": "H100, mixture"}
PLACE = re.compile(r"(<!-- controller: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def main() -> int:
    """Update every page."""
    results = json.loads(RESULTS.read_text())
    for path in DOCS:
        path.write_text(included(path.read_text(), results))
    return 0


def included(page: str, results: Mapping[str, Any]) -> str:
    """Return a page with its tables replaced by those of the results."""
    tables = {"regret": regret_table, "elimination": elimination_table, "source": source_line}
    return PLACE.sub(lambda match: match[1] + tables[match[2]](results) + match[4], page)


def source_line(results: Mapping[str, Any]) -> str:
    """How the figures were obtained."""
    return (
        f"Source: `bench/results/{RESULTS.name}` ({results['command']}; {results['date']}, "
        f"commit {results['commit']}, {results['processor']}, {results['interpreter']}).\n"
    )


def regret_table(results: Mapping[str, Any]) -> str:
    """Mean and worst regret of every policy by machine."""
    rows = [["policy", *MACHINES.values()]]
    for policy, machines in results["regret"].items():
        rows.append([policy, *(_pair(machines[name]) for name in MACHINES)])
    return _table(rows)


def elimination_table(results: Mapping[str, Any]) -> str:
    """Change of regret by removed mechanism, cheapest first."""
    rows = [["without", "mean regret", "worst regret", "outcome"]]
    for entry in sorted(results["elimination"], key=lambda entry: float(entry["mean"])):
        mean = f"{entry['mean']:+.2f} ± {entry['mean_se']:.2f}"
        worst = f"{entry['worst']:+.2f} ± {entry['worst_se']:.2f}"
        rows.append([entry["mechanism"], mean, worst, entry["outcome"]])
    return _table(rows)


def _pair(figures: Mapping[str, float]) -> str:
    return (
        f"{figures['mean']:.2f} ± {figures['mean_se']:.2f} / "
        f"{figures['worst']:.1f} ± {figures['worst_se']:.1f}"
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


if __name__ == "__main__":
    sys.exit(main())
