"""`propertyNames`, as far as patterns of properties have the same meaning."""

from specdecode_engine.grammar.schemas.parts import (
    ANNOTATIONS,
    Document,
    Part,
    Schema,
    finite_values,
    is_part,
    named_parts,
    types_of,
)
from specdecode_engine.grammar.schemas.texts.matching import matches

_ALL = ("", ".*", "^.*", ".*$")
"""Patterns that match somewhere in every text."""
_LENGTHS = ("minLength", "maxLength")


def rewrite_property_names(part: Part, document: Document) -> None:
    """Replace `propertyNames`: by nothing if it permits all names, else by the names it permits."""
    if "propertyNames" not in part:
        return
    names = document.resolve(part["propertyNames"])
    _widen_pattern(part, names)
    if names is True or (is_part(names) and _permits_all(names)):
        del part["propertyNames"]
    elif names is False:
        part["additionalProperties"] = False
        for key in ("propertyNames", "properties", "patternProperties"):
            part.pop(key, None)
    elif is_part(names) and (values := finite_values(names)) is not None:
        _keep_names(part, {value for value in values if isinstance(value, str)}, names)
    elif is_part(names) and not part.keys() & {"properties", "patternProperties", "required"}:
        _keep_pattern(part, names)


def _widen_pattern(part: Part, names: Schema) -> None:
    """Let all properties have the schema of a pattern that all permitted names match."""
    patterns = named_parts(part, "patternProperties")
    if len(patterns) != 1 or part.get("properties") or not is_part(names):
        return
    ((pattern, value),) = patterns.items()
    if (
        pattern in _ALL
        or (pattern == ".+" and _have_characters(names))
        or (pattern == names.get("pattern"))
    ):
        part["additionalProperties"] = value
        del part["patternProperties"]


def _have_characters(names: Part) -> bool:
    """Whether each permitted name is known to have a character that is not the end of a line."""
    if (values := finite_values(names)) is not None:
        return all(isinstance(value, str) and value.isprintable() and value for value in values)
    pattern = names.get("pattern")
    return isinstance(pattern, str) and matches(pattern, "") is False


def _permits_all(names: Part) -> bool:
    return not names.keys() - ANNOTATIONS - {"type"} and "string" in types_of(names)


def _keep_names(part: Part, permitted: set[str], names: Part) -> None:
    """Permit the listed names alone: each has the schema that it had before."""
    if names.keys() - ANNOTATIONS - {"type", "enum", "const"} or "string" not in types_of(names):
        return
    if "patternProperties" in part:
        return
    properties, other = named_parts(part, "properties"), part.get("additionalProperties", True)
    part["properties"] = {
        name: properties.get(name, other) for name in [*properties, *sorted(permitted)]
        if name in permitted
    }  # fmt: skip
    part["additionalProperties"] = False
    del part["propertyNames"]


def _keep_pattern(part: Part, names: Part) -> None:
    known = ANNOTATIONS | {"type", "pattern", *_LENGTHS}
    if names.keys() - known or "string" not in types_of(names):
        return
    pattern = _pattern(names)
    if pattern is None:
        return
    value: Schema = part.get("additionalProperties", True)
    part["patternProperties"] = {pattern: value}
    part["additionalProperties"] = False
    del part["propertyNames"]


def _pattern(names: Part) -> str | None:
    """Return the pattern of names; None if there are both a pattern and a length."""
    limits = {key: names[key] for key in _LENGTHS if key in names}
    pattern = names.get("pattern")
    if pattern is not None:
        return pattern if isinstance(pattern, str) and not limits else None
    low, high = (limits.get(key) for key in _LENGTHS)
    if not all(each is None or type(each) is int for each in (low, high)):
        return None
    return rf"^[\s\S]{{{low or 0},{'' if high is None else high}}}$"
