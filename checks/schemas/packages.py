"""Schemas that zod and pydantic write for their types, with values that the packages judge.

A value counts only where the package and jsonschema-rs agree: packages convert values, which no
schema states.
"""

import json
import subprocess
from collections.abc import Iterable, Iterator
from typing import Any

from jsonschema_rs import validator_for
from pydantic import TypeAdapter, ValidationError

from checks.clients.programs import ensure_node_modules
from checks.schemas.corpora import SchemaCase
from checks.schemas.pydantic_types import ADAPTERS, TYPES

ZOD_PROGRAM = "zod_types.mjs"
POOL: tuple[object, ...] = (
    None, True, 0, 1, -1, 5, 2.5, "", "a", "abc", "red", "2026-11-29", [], [1], ["a"], {},
    {"a": 1}, {"a": "b"}, {"name": "a"}, {"kind": "cat"}, [None],
)  # fmt: skip


def read_packages() -> list[SchemaCase]:
    """Return the types of both packages.

    Raises:
        PeerUnavailable: npm is missing, or zod cannot be fetched.
    """
    return [*_zod_types(), *pydantic_types()]


def _zod_types() -> Iterator[SchemaCase]:
    program = ensure_node_modules() / ZOD_PROGRAM
    done = subprocess.run(["node", str(program)], check=True, capture_output=True, text=True)
    for each in json.loads(done.stdout):
        yield _case("zod", each["name"], each["schema"], each["instances"])


def pydantic_types() -> Iterator[SchemaCase]:
    """Yield the types of the pydantic that is installed."""
    for name, _, values in TYPES:
        adapter = ADAPTERS[name]
        texts = [json.dumps(value) for value in (*values, *POOL)]
        judged = [(text, _accepts(adapter, text)) for text in texts]
        yield _case("pydantic", name, adapter.json_schema(), judged)


def _accepts(adapter: TypeAdapter[Any], text: str) -> bool:
    try:
        adapter.validate_json(text)
    except ValidationError:
        return False
    return True


def _case(
    group: str, name: str, schema: dict[str, Any], judged: Iterable[tuple[str, bool]]
) -> SchemaCase:
    validator = validator_for(schema, validate_formats=True)
    agreed = {
        text: valid for text, valid in judged if validator.is_valid(json.loads(text)) == valid
    }
    return SchemaCase(group, name, schema, tuple(agreed.items()))
