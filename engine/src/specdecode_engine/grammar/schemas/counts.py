"""`minProperties` and `maxProperties` of optional properties, by cases."""

from itertools import combinations

from specdecode_engine.grammar.schemas.parts import (
    MOST_BRANCHES,
    Document,
    Part,
    Schema,
    constrain,
    named_parts,
    strings,
)

_LIMITS = ("minProperties", "maxProperties")
_MOST_CHOSEN = 6
"""Optional properties of which all subsets are branches: 64."""


def rewrite_property_counts(part: Part, document: Document) -> None:
    """Replace limits by branches in which each listed property is required or absent."""
    limits = {key: part[key] for key in _LIMITS if key in part}
    if not limits or not all(type(value) is int for value in limits.values()):
        return
    required = set(strings(part.get("required")) or ())
    properties = named_parts(part, "properties")
    optional = [
        name for name in properties if name not in required and properties[name] is not False
    ]
    low, high = (part.get(key) for key in _LIMITS)
    assert low is None or isinstance(low, int)
    assert high is None or isinstance(high, int)
    if high is not None and _is_closed(part) and high >= len(required | properties.keys()):
        del part["maxProperties"], limits["maxProperties"]
        high = None
    if not optional or not limits:
        return
    missing = max(0, (low or 0) - len(required))
    room = None if high is None else high - len(required)
    branches = _branches(optional, missing, room, limits, is_closed=_is_closed(part))
    document.counted -= len(branches)
    if branches and document.counted >= 0:
        for key in limits:
            del part[key]
        constrain(part, {"anyOf": branches})


def _is_closed(part: Part) -> bool:
    return part.get("additionalProperties") is False and not part.get("patternProperties")


def _branches(
    optional: list[str], missing: int, room: int | None, limits: Part, *, is_closed: bool
) -> list[Schema]:
    """Return branches that exclude each other; none where there would be too many.

    Args:
        missing: optional or unlisted properties that an object needs besides those required.
        room: such properties that it may have; None: any number.
    """
    others = [] if is_closed and missing else [_choice(optional, (), limits)]
    if missing <= 1 and room is None and len(optional) < MOST_BRANCHES:
        firsts = [
            _choice(optional[:at], (), {"required": [name]}) for at, name in enumerate(optional)
        ]
        return [*firsts, *others]
    if missing <= 1 and room == 1 and len(optional) < MOST_BRANCHES:
        return [*(_choice(optional, (name,), limits) for name in optional), *others]
    if len(optional) > _MOST_CHOSEN:
        return []
    most = len(optional) if room is None else min(room, len(optional))
    sizes = range(missing if is_closed else 0, most + 1)
    chosen = [each for size in sizes for each in combinations(optional, size)]
    return [_choice(optional, each, limits) for each in chosen]


def _choice(optional: list[str], chosen: tuple[str, ...], limits: Part) -> Part:
    """Return a branch that requires the chosen properties and has none of the others."""
    absent: Part = {name: False for name in optional if name not in chosen}
    branch: Part = {**limits}
    if absent:
        branch["properties"] = absent
    if chosen:
        branch["required"] = list(chosen)
    return branch
