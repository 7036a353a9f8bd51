"""Schemas with valid and invalid instances, read from clones of public repositories."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SUITE = "JSON-Schema-Test-Suite"
BENCH = "jsonschemabench"


class CorpusMissing(Exception):
    """A folder has no clone of a repository; the message names it."""


@dataclass(frozen=True, slots=True)
class SchemaCase:
    """A schema, and texts of JSON with whether they are valid."""

    group: str
    name: str
    schema: dict[str, Any]
    instances: tuple[tuple[str, bool], ...]


def read_cases(folder: Path, every: int) -> list[SchemaCase]:
    """Return all cases of the suite's newest draft, and every so many-th real schema.

    Raises:
        CorpusMissing: one of the clones is not there.
    """
    return [*_suite(folder / SUITE), *_bench(folder / BENCH, every)]


def _suite(clone: Path) -> Iterator[SchemaCase]:
    for file in _files(clone, "tests/draft2020-12"):
        for case in json.loads(file.read_text()):
            if isinstance(case["schema"], dict):
                name = f"{file.stem}: {case['description']}"
                yield SchemaCase("draft 2020-12", name, case["schema"], _texts(case["tests"]))


def _bench(clone: Path, every: int) -> Iterator[SchemaCase]:
    for file in _files(clone, "maskbench/data")[::every]:
        document = json.loads(file.read_text())
        if isinstance(document.get("schema"), dict):
            group = file.stem.partition("---")[0] if "---" in file.stem else "BFCL"
            yield SchemaCase(group, file.stem, document["schema"], _texts(document["tests"]))


def _files(clone: Path, path: str) -> list[Path]:
    files = sorted((clone / path).glob("*.json"))
    if not files:
        raise CorpusMissing(
            f"{clone / path} has no schemas: clone json-schema-org/JSON-Schema-Test-Suite and "
            f"guidance-ai/jsonschemabench into {clone.parent}"
        )
    return files


def _texts(tests: list[dict[str, Any]]) -> tuple[tuple[str, bool], ...]:
    """Return the instances that can be written in UTF-8."""
    texts = ((json.dumps(each["data"], ensure_ascii=False), each["valid"]) for each in tests)
    return tuple((text, valid) for text, valid in texts if _is_unicode(text))


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
