"""Compares the served schema with the operator's: fields it would drop, values it would reject.

A CRD that is older than the operator drops fields silently. Comparing fields finds more than
comparing a version or a hash would, for example manual edits.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

from specdecode_api import names
from specdecode_api.schema import custom_resource_definition

Schema = dict[str, Any]

SHOWN = 5
REMEDY = (
    "upgrade it: helm upgrade with crds.install=true, or kubectl apply --server-side -f "
    f"crds/{names.GROUP}_{names.PLURAL}.yaml"
)
_OF_THE_SERVER = ("apiVersion", "kind", "metadata")
_OPEN = "x-kubernetes-preserve-unknown-fields"


@cache
def own_schema() -> Schema:
    """The schema of this operator's release."""
    version = custom_resource_definition()["spec"]["versions"][0]
    schema: Schema = version["schema"]["openAPIV3Schema"]
    return schema


def sentence(lacking: tuple[str, ...]) -> str:
    """Format the missing fields and the remedy."""
    shown = ", ".join(lacking[:SHOWN])
    more = f" and {len(lacking) - SHOWN} more" if len(lacking) > SHOWN else ""
    return (
        f"the CRD {names.PLURAL} in this cluster is older than this operator and drops or "
        f"rejects {shown}{more}; {REMEDY}"
    )


def lacks(own: Schema, served: Schema, path: str = "") -> Iterator[str]:
    """Yield the topmost fields of `own` that `served` drops, and the values it rejects."""
    if served.get(_OPEN):
        return
    if "enum" in own and "enum" in served:
        yield from (f"{path}={value}" for value in own["enum"] if value not in served["enum"])
    known, others = served.get("properties", {}), served.get("additionalProperties")
    for name, schema in own.get("properties", {}).items():
        inner = f"{path}.{name}" if path else name
        if inner in _OF_THE_SERVER:
            continue
        if name in known:
            yield from lacks(schema, known[name], inner)
        elif not others:
            yield inner
    for key, mark in (("items", "[]"), ("additionalProperties", ".*")):
        if isinstance(own.get(key), dict) and isinstance(served.get(key), dict):
            yield from lacks(own[key], served[key], path + mark)


def known_part(value: Any, schema: Schema) -> Any:
    """A value without the fields that the schema lacks, as the API server stores it."""
    if schema.get(_OPEN):
        return value
    if isinstance(value, list):
        return [known_part(each, schema.get("items", {})) for each in value]
    if not isinstance(value, dict):
        return value
    known, others = schema.get("properties", {}), schema.get("additionalProperties")
    rest = others if isinstance(others, dict) else {}
    return {
        name: known_part(inner, known.get(name, rest))
        for name, inner in value.items()
        if name in known or others
    }
