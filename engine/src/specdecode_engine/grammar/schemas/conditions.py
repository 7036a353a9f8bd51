"""`not`, `if`, `dependentRequired`, `dependentSchemas` and `dependencies` by cases."""

from specdecode_engine.grammar.schemas.negation import NotExpressible, all_of, any_of, negation
from specdecode_engine.grammar.schemas.parts import (
    Document,
    Part,
    Schema,
    constrain,
    is_part,
    strings,
)

_DEPENDENCIES = ("dependentRequired", "dependentSchemas", "dependencies")
_MOST_CASES = 8
"""Conditions of one object: the library multiplies their cases."""


def rewrite_not(part: Part, document: Document) -> None:
    """Replace `not` by what it permits."""
    if "not" not in part:
        return
    rest = {key: value for key, value in part.items() if key != "not"}
    try:
        permitted = negation(part["not"], document, rest)
    except NotExpressible:
        return
    del part["not"]
    if permitted is not True:
        constrain(part, permitted)


def rewrite_if(part: Part, document: Document) -> None:
    """Replace `if`, `then` and `else` by the two cases."""
    if "if" not in part or not part.keys() & {"then", "else"}:  # nothing depends on it
        for key in ("if", "then", "else"):
            part.pop(key, None)
        return
    rest = {key: value for key, value in part.items() if key not in ("if", "then", "else")}
    try:
        otherwise = negation(part["if"], document, rest)
    except NotExpressible:
        return
    condition, then = part.pop("if"), part.pop("then", True)
    last = part.pop("else", True)
    if then is not True or last is not True:
        cases = [all_of([condition, then]), all_of([otherwise, last])]
        constrain(part, any_of(cases))


def rewrite_dependencies(part: Part, document: Document) -> None:
    """Replace what the presence of a property demands: it is absent, or the demand is met."""
    del document
    demands: list[tuple[str, str, Schema]] = []
    for key in _DEPENDENCIES:
        named = part.get(key)
        if not isinstance(named, dict):
            continue
        for name, demand in named.items():
            names = strings(demand)
            if names is None and not is_part(demand) and not isinstance(demand, bool):
                return
            demands.append((key, name, demand if names is None else {"required": names}))
    if len(demands) > _MOST_CASES:
        return
    for key in _DEPENDENCIES:
        if part.get(key) == {}:
            del part[key]
    for key, name, demand in demands:
        present = all_of([{"required": [name]}, demand])
        constrain(part, any_of([{"properties": {name: False}}, present]))
        part.pop(key, None)
