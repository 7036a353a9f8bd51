"""`oneOf` as `anyOf`: branches that exclude each other, have a tag, or can be negated."""

import json
from itertools import combinations

from specdecode_engine.grammar.schemas.disjoint import exclude
from specdecode_engine.grammar.schemas.negation import NotExpressible, all_of, negation
from specdecode_engine.grammar.schemas.parts import (
    MOST_BRANCHES,
    Document,
    Part,
    Schema,
    branches,
    constrain,
    finite_values,
    is_part,
    named_parts,
    strings,
)

_MOST_NEGATED = 8


def rewrite_one_of(part: Part, document: Document) -> None:
    """Replace `oneOf` if exactly one branch of the result can be valid."""
    alternatives = branches(part, "oneOf")
    if not 0 < len(alternatives) <= MOST_BRANCHES:
        return
    rewritten = (
        _exclusive(alternatives, document, part)
        or _tagged(alternatives, document, part)
        or _negated(alternatives, document, part)
    )
    if rewritten is None:
        return
    del part["oneOf"]
    if "anyOf" in part:
        constrain(part, {"anyOf": rewritten})
    else:
        part["anyOf"] = rewritten


def _exclusive(alternatives: list[Schema], document: Document, within: Part) -> list[Schema] | None:
    pairs = combinations(alternatives, 2)
    is_exclusive = all(exclude(one, other, document, within) for one, other in pairs)
    return alternatives if is_exclusive else None


def _tagged(alternatives: list[Schema], document: Document, part: Part) -> list[Schema] | None:
    """Require the tag of OpenAPI's `discriminator`, if its values distinguish the branches.

    An object without its tag is valid in no branch for OpenAPI, and for pydantic, which leaves the
    tag out of `required` where it has a default. So the result admits less than the schema.
    """
    found = part.get("discriminator")
    tag = found.get("propertyName") if isinstance(found, dict) else None
    if not isinstance(tag, str) or not isinstance(document.root.get("$defs", {}), dict):
        return None
    targets = [document.resolve(each) for each in alternatives]
    if not all(is_part(each) and each.get("type") == "object" for each in targets):
        return None
    tags = [named_parts(each, "properties").get(tag) for each in targets if is_part(each)]
    if not all(is_part(each) and finite_values(each) is not None for each in tags):
        return None
    if not all(exclude(one, other, document, {}) for one, other in combinations(tags, 2)):
        return None
    return [_with_required(each, tag, document) for each in alternatives]


def _with_required(schema: Schema, name: str, document: Document) -> Schema:
    """Return an object's schema that requires a property; a reference to one if it was one."""
    assert is_part(schema)
    target = schema.get("$ref")
    if not isinstance(target, str):
        return _requiring(schema, name)
    if (target, name) not in document.named:
        copied: Part = _requiring(json.loads(json.dumps(document.resolve(schema))), name)
        document.named[target, name] = document.define(copied)
    return {"$ref": document.named[target, name]}


def _requiring(part: Part, name: str) -> Part:
    required = strings(part.get("required")) or []
    part["required"] = [*required, *([] if name in required else [name])]
    return part


def _negated(alternatives: list[Schema], document: Document, part: Part) -> list[Schema] | None:
    """Exclude from each branch what the others accept."""
    if len(alternatives) > _MOST_NEGATED:
        return None
    try:
        refused = [negation(each, document, part) for each in alternatives]
    except NotExpressible:
        return None
    return [
        all_of([each, *(other for at, other in enumerate(refused) if at != index)])
        for index, each in enumerate(alternatives)
    ]
