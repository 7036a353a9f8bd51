"""Writes the table of values in the chart's README from `values.yaml`; `--check` only compares.

A comment right above a key describes it. Every value that holds no further keys is a row; a
map with a comment of its own is one too, without a default.
"""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

CHART = Path(__file__).resolve().parent.parent / "charts" / "specdecode"
BEGIN = "<!-- values: written by scripts/chart_values.py from values.yaml -->"
END = "<!-- end of values -->"
_KEY = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z][A-Za-z0-9_]*):(?P<rest>.*)$")


@dataclass(frozen=True, slots=True)
class Row:
    """One value: its path with dots, its default as JSON (None for a map), and what it means."""

    path: str
    default: str | None
    meaning: str


def rows(text: str) -> Iterator[Row]:
    """Read the rows of a file of values.

    Raises:
        ValueError: when a line is neither a key with its value, nor a comment, nor empty.
    """
    values, path, comment = yaml.safe_load(text), list[str](), list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip().startswith("#"):
            comment.append(line.strip().removeprefix("#").strip())
            continue
        found = _KEY.match(line)
        if found is None:
            if line.strip():
                raise ValueError(f"values.yaml:{number}: write {line.strip()!r} as key: value")
            comment = []
            continue
        depth = len(found["indent"]) // 2
        path = [*path[:depth], found["key"]]
        value = _at(values, path)
        is_map = isinstance(value, dict) and bool(value) and not found["rest"].strip()
        if not is_map or comment:
            default = None if is_map else json.dumps(value)
            yield Row(".".join(path), default, " ".join(comment))
        comment = []


def table(text: str) -> str:
    """The rows as a Markdown table."""
    lines = ["| value | default | meaning |", "|---|---|---|"]
    for row in rows(text):
        default = "" if row.default is None else f"`{row.default}`"
        meaning = row.meaning.replace("|", "\\|")
        lines.append(f"| `{row.path}` | {default} | {meaning} |")
    return "\n".join(lines)


def filled(readme: str, text: str) -> str:
    """Return the README with an updated table.

    Raises:
        ValueError: when it has no place for the table.
    """
    if BEGIN not in readme or END not in readme:
        raise ValueError(f"README.md: put {BEGIN} and {END} where the table belongs")
    before, _, rest = readme.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{table(text)}\n\n{END}{after}"


def main(arguments: list[str]) -> int:
    """Write or check; returns the exit code."""
    path = CHART / "README.md"
    before = path.read_text(encoding="utf-8")
    after = filled(before, (CHART / "values.yaml").read_text(encoding="utf-8"))
    if "--check" not in arguments:
        path.write_text(after, encoding="utf-8")
    elif after != before:
        print("charts/specdecode/README.md is not that of values.yaml; run `make manifests`")
        return 1
    return 0


def _at(values: object, path: list[str]) -> object:
    for key in path:
        assert isinstance(values, dict), f"{'.'.join(path)} is not a key of a map"
        values = values[key]
    return values


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
