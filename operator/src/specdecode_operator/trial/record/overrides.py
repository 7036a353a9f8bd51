"""Promoted values in the place of fields of the spec, each until its field is edited.

An override holds as long as the spec has the value that it had at the promotion. So the next edit
of a promoted field ends the override of that field, and of no other.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from specdecode_operator.owned.hashes import digest

_ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class Override:
    """A field of the spec that a promotion overrides."""

    field: str
    """Path with dots."""
    spec_hash: str
    """Hash of the spec's own value at the promotion; empty where it was absent."""


def overrides_of(spec: Mapping[str, Any], candidate: Mapping[str, Any]) -> tuple[Override, ...]:
    """The overrides that a promotion of `candidate`, a merge patch, would make now."""
    return tuple(
        Override(path, _hash(_value(spec, path))) for path in sorted(_leaves(candidate, ()))
    )


def merged(known: Iterable[Override], new: Iterable[Override]) -> tuple[Override, ...]:
    """All overrides after a promotion; a new one replaces those of the same or a nested field."""
    added = tuple(new)
    kept = (each for each in known if not any(_covers(one.field, each.field) for one in added))
    return tuple(sorted((*kept, *added), key=lambda each: each.field))


def holding(spec: Mapping[str, Any], overrides: Iterable[Override]) -> tuple[Override, ...]:
    """The overrides whose fields were not edited."""
    return tuple(each for each in overrides if _hash(_value(spec, each.field)) == each.spec_hash)


def overridden(
    spec: Mapping[str, Any], promoted: Mapping[str, Any], overrides: Iterable[Override]
) -> dict[str, Any]:
    """The spec with the promoted values of some fields."""
    found: dict[str, Any] = copy.deepcopy(dict(spec))
    for each in overrides:
        _put(found, each.field.split("."), _value(promoted, each.field))
    return found


def _covers(field: str, other: str) -> bool:
    return field == other or other.startswith(f"{field}.")


def _leaves(patch: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    for name, value in patch.items():
        is_object = isinstance(value, Mapping) and value
        if is_object and not any("." in key for key in value):
            yield from _leaves(value, (*path, name))
        else:
            yield ".".join((*path, name))


def _value(spec: Mapping[str, Any], field: str) -> Any:
    found: Any = spec
    for name in field.split("."):
        if not isinstance(found, Mapping) or name not in found:
            return _ABSENT
        found = found[name]
    return found


def _hash(value: Any) -> str:
    return "" if value is _ABSENT else digest(value)


def _put(spec: dict[str, Any], path: list[str], value: Any) -> None:
    *folders, last = path
    for name in folders:
        spec = spec.setdefault(name, {})
    if value is _ABSENT:
        spec.pop(last, None)
    else:
        spec[last] = value
