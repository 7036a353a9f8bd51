"""Packages the chart with the images of the release pinned by digest."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import yaml

from scripts.release_steps.commands import run
from scripts.release_steps.errors import ReleaseError

CHART = Path("charts/specdecode")
_KEY = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z][A-Za-z0-9_]*):(?P<value>.*)$")


def package(source: Path, values: Mapping[str, str], helm: Path, to: Path) -> Path:
    """Package a copy of the chart with other default values; returns the package.

    Raises:
        ReleaseError: when values.yaml lacks a key, or helm refuses the chart.
    """
    copy = to / "chart" / CHART.name
    shutil.copytree(source / CHART, copy)
    text = (copy / "values.yaml").read_text()
    for path, value in values.items():
        text = set_value(text, path, value)
    (copy / "values.yaml").write_text(text)
    run([helm, "lint", "--strict", copy])
    run([helm, "package", copy, "--destination", to])
    (made,) = to.glob("specdecode-*.tgz")
    return made


def set_value(text: str, path: str, value: str) -> str:
    """Replace the value of a key, given with dots, in a file of values; comments stay.

    Raises:
        ReleaseError: when the file has no such key with a value of one line.
    """
    keys, lines = list[str](), text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        found = _KEY.match(line.rstrip("\n"))
        if found is None:
            continue
        keys = [*keys[: len(found["indent"]) // 2], found["key"]]
        if ".".join(keys) == path and found["value"].strip():
            lines[number] = f"{found['indent']}{found['key']}: {json.dumps(value)}\n"
            changed = "".join(lines)
            if _at(yaml.safe_load(changed), path) == value:
                return changed
    raise ReleaseError(f"values.yaml has no value {path} on one line: add it, or change chart.py")


def _at(values: object, path: str) -> object:
    for key in path.split("."):
        values = values.get(key) if isinstance(values, dict) else None
    return values
