"""The rows of request_fields.toml: what becomes of each field that a peer or an SDK defines."""

import tomllib
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "request_fields.toml"
SAMPLE = 7
"""A value that a refused or ignored field has in tests, unless its row has another one."""


class Source(StrEnum):
    """Who defines a field: an engine's request model, or the create call of an SDK."""

    VLLM = "vllm"
    SGLANG = "sglang"
    OPENAI = "openai"
    ANTHROPIC = "anthropic"


class Verdict(StrEnum):
    """What becomes of a field."""

    WORKS = "works"
    IGNORED = "ignored"  # no answer depends on it
    REFUSED = "refused"  # 400 with the field's name and a remedy


@dataclass(frozen=True, slots=True)
class RequestField:
    """A field of a body.

    Attributes:
        name: a key of an object follows a dot, as in `stream_options.include_usage`; one of the
            objects in a list as in `tools[].name`.
        test: of a field that works: the test that fails if the field is ignored.
        reason: of an ignored field: why no answer depends on it.
        value: of a refused field one that is refused, of an ignored field one that it may have.
    """

    path: str
    name: str
    sources: tuple[Source, ...]
    verdict: Verdict
    test: str | None = None
    reason: str | None = None
    value: object = SAMPLE

    def set_in(self, body: Mapping[str, Any], value: object) -> dict[str, Any]:
        """Return the body with this value of the field, in an object or the first of a list."""
        changed = deepcopy(dict(body))
        holder: Any = changed
        *objects, last = self.name.split(".")
        for name in objects:
            holder = holder.setdefault(name.removesuffix("[]"), {})
            holder = holder[0] if name.endswith("[]") else holder
        holder[last] = value
        return changed


@dataclass(frozen=True, slots=True)
class RequestFields:
    """The whole table."""

    versions: Mapping[Source, str]  # whose fields the rows are
    rows: tuple[RequestField, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.path for row in self.rows))

    def of(self, path: str, verdict: Verdict | None = None) -> list[RequestField]:
        """Return the rows of a path, or those with a verdict."""
        return [row for row in self.rows if row.path == path and verdict in (None, row.verdict)]


@cache
def read_request_fields() -> RequestFields:
    """Read the table of this package."""
    document = tomllib.loads(FILE.read_text(encoding="utf-8"))
    versions = {Source(name): version for name, version in document.pop("versions").items()}
    reasons = document.pop("reasons")
    return RequestFields(versions, tuple(_rows(document, reasons)))


def _rows(document: Mapping[str, Any], reasons: Mapping[str, str]) -> Iterator[RequestField]:
    for path, fields in document.items():
        for name, row in fields.items():
            verdict = next(each for each in Verdict if each in row)
            yield RequestField(
                path=path,
                name=name,
                sources=tuple(Source(each) for each in row["of"]),
                verdict=verdict,
                test=row.get(Verdict.WORKS),
                reason=reasons[row[verdict]] if verdict is Verdict.IGNORED else None,
                value=row.get("value", SAMPLE),
            )
