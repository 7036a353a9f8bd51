"""JSON Schema: default options, and a search for the invalid part of a schema."""

from collections.abc import Callable, Iterator, Mapping

JsonSchema = Mapping[str, object]
Refuse = Callable[[JsonSchema], str | None]
"""Returns the error in a schema; None if it is valid."""

# White space as JSON printers write it: a space, or a line break and the indentation. JSON allows
# any amount, and a model may then generate white space without end.
WHITESPACE = r"[ \t]{1,2}|\r?\n[ \t]{0,32}"
OPTIONS = "x-guidance"

_DEFINITIONS = ("$defs", "definitions")
NAMED = ("properties", "patternProperties", "dependentSchemas")
DIRECT = (
    "anyOf", "oneOf", "allOf", "prefixItems", "items", "additionalProperties", "not", "if", "then",
    "else", "contains",
)  # fmt: skip
_MOST_PROBES = 400


def with_defaults(schema: JsonSchema, is_strict: bool) -> dict[str, object]:
    """Add the library's options that the schema does not set itself."""
    given = schema.get(OPTIONS)
    options = dict(given) if isinstance(given, Mapping) else {}
    if "whitespace_flexible" not in options:
        options.setdefault("whitespace_pattern", WHITESPACE)
    options.setdefault("lenient", not is_strict)
    return {**schema, OPTIONS: options}


def find_fault(schema: JsonSchema, refuse: Refuse) -> tuple[str, str] | None:
    """Find the smallest part of a schema that is refused for the same reason as the whole.

    Returns its path from `$`, and the error; None if the schema is valid.
    """
    reason = refuse(schema)
    if reason is None:
        return None
    shared = {key: schema[key] for key in (*_DEFINITIONS, OPTIONS) if key in schema}
    place, part = "$", schema
    probes = _MOST_PROBES
    while True:
        for step, child in schema_parts(part, is_root=part is schema):
            probes -= 1
            if probes < 0:
                return place, reason
            if refuse({**shared, **child}) == reason:
                place, part = place + step, child
                break
        else:
            return place, reason


def schema_parts(schema: JsonSchema, is_root: bool) -> Iterator[tuple[str, JsonSchema]]:
    """Yield the steps to the schemas in a schema, and these; definitions only of a root.

    Objects are dicts, as JSON is read: a check for `Mapping` takes ten times as long, and all parts
    of a schema are visited several times.
    """
    for key in (*_DEFINITIONS, *NAMED) if is_root else NAMED:
        named = schema.get(key)
        if isinstance(named, dict):
            for name, child in named.items():
                if isinstance(child, dict):
                    yield f".{key}.{name}", child
    for key in DIRECT:
        child = schema.get(key)
        if isinstance(child, dict):
            yield f".{key}", child
        elif isinstance(child, list):
            for index, item in enumerate(child):
                if isinstance(item, dict):
                    yield f".{key}[{index}]", item
