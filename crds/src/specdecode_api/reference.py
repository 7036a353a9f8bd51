"""The field reference in Markdown: every field of the resource and of the boot file."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from specdecode_api import names
from specdecode_api.boot import EngineBoot
from specdecode_api.descriptions import ANY_ITEM, ANY_KEY, FieldDescription, field_descriptions
from specdecode_api.rules import VALIDATIONS_KEY
from specdecode_api.schema import resource_schema, trial_schema

_INTRODUCTION = f"""\
# Field reference

The custom resource `{names.KIND}` (`{names.API_VERSION}`, short name `{names.SHORT_NAME}`), the
boot file that the operator writes from it, and the custom resource `{names.KIND_TRIAL}` (short name
`{names.SHORT_NAME_TRIAL}`).
`kubectl explain {names.SHORT_NAME}.spec` prints the same.

A change marked **hot** is applied to running engines; **restart** replaces the pods.
`<key>` is a key that you choose.
"""


def field_reference(notice: str) -> str:
    """Write the reference; `notice` names what generated it."""
    resource = field_descriptions(resource_schema())
    spec = [row for row in resource if row.path[0] == "spec" and len(row.path) > 1]
    status = [row for row in resource if row.path[0] == "status" and len(row.path) > 1]
    boot = field_descriptions(EngineBoot.model_json_schema())
    trial = field_descriptions(trial_schema())
    parts = [
        f"<!-- {notice} -->\n",
        _INTRODUCTION,
        "## Spec\n",
        _table(("Field", "Type", "Default", "Bounds", "Change", "Meaning"), map(_spec_line, spec)),
        "## Rules\n",
        "The API server refuses a resource that breaks one of these, with this sentence.\n",
        _table(("Where", "Rule"), _rule_lines(names.KIND, resource_schema())),
        "## Status\n",
        _table(("Field", "Type", "Meaning"), map(_status_line, status)),
        "## Boot file\n",
        "What an engine starts from; its JSON schema is `crds/boot.schema.json`.\n",
        _table(("Field", "Type", "Default", "Bounds", "Meaning"), map(_boot_line, boot)),
        f"## {names.KIND_TRIAL}: spec\n",
        _table(
            ("Field", "Type", "Default", "Bounds", "Meaning"),
            [_boot_line(row) for row in trial if row.path[0] == "spec" and len(row.path) > 1],
        ),
        f"## {names.KIND_TRIAL}: rules\n",
        _table(("Where", "Rule"), _rule_lines(names.KIND_TRIAL, trial_schema())),
        f"## {names.KIND_TRIAL}: status\n",
        _table(
            ("Field", "Type", "Meaning"),
            [_status_line(row) for row in trial if row.path[0] == "status" and len(row.path) > 1],
        ),
    ]
    return "\n".join(parts)


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def _spec_line(row: FieldDescription) -> list[str]:
    start, meaning = _boot_line(row)[:-1], row.schema.get("description", "")
    return [*start, row.change, meaning]


def _boot_line(row: FieldDescription) -> list[str]:
    meaning = row.schema.get("description", "")
    return [_name(row), _type(row.schema), _default(row), _bounds(row.schema), meaning]


def _status_line(row: FieldDescription) -> list[str]:
    return [_name(row), _type(row.schema), row.schema.get("description", "")]


def _rule_lines(kind: str, schema: Mapping[str, Any]) -> Iterator[list[str]]:
    yield from ([kind, rule["message"]] for rule in schema.get(VALIDATIONS_KEY, ()))
    for row in field_descriptions(schema):
        for rule in row.rules:
            place = f"{_dotted(row)}{rule.get('fieldPath', '')}".removeprefix(".")
            yield [f"`{place}`", rule["message"]]


def _name(row: FieldDescription) -> str:
    return f"`{_dotted(row)}`"


def _dotted(row: FieldDescription) -> str:
    words = row.path[1:] if row.path[0] in ("spec", "status") else row.path
    dotted = ".".join("<key>" if word == ANY_KEY else word for word in words)
    return dotted.replace(f".{ANY_ITEM}", ANY_ITEM)


def _type(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if schema.get("x-kubernetes-int-or-string"):
        return "quantity"
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    below = schema.get("additionalProperties")
    return "map" if isinstance(below, Mapping) or "patternProperties" in schema else schema["type"]


def _default(row: FieldDescription) -> str:
    if row.is_required:
        return "required"
    default = row.schema.get("default")
    # The default of an object consists of its fields' defaults.
    if default is None or (default and "properties" in row.schema):
        return ""
    return f"`{json.dumps(default)}`"


_NUMBER_BOUNDS = {"minimum", "maximum", "exclusiveMinimum"}


def _bounds(schema: Mapping[str, Any]) -> str:
    numbers = schema.get("items", schema)
    bounds = [_range(numbers)] if numbers.keys() & _NUMBER_BOUNDS else []
    for most, noun in (
        ("maxLength", "characters"),
        ("maxItems", "items"),
        ("maxProperties", "keys"),
    ):
        if most in schema:
            bounds.append(f"at most {schema[most]} {noun}")
    return ", ".join(bounds)


def _range(schema: Mapping[str, Any]) -> str:
    exclusive = schema.get("exclusiveMinimum")
    # The bound itself in JSON schema, a flag next to the bound in a structural schema.
    lowest = schema.get("minimum") if exclusive in (None, True) else exclusive
    bounds = [] if lowest is None else [f"{'≥' if exclusive is None else '>'} {lowest}"]
    return ", ".join([*bounds, f"≤ {schema['maximum']}"] if "maximum" in schema else bounds)
