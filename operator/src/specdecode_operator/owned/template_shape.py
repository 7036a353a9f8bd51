"""Types of the fields of a user's template that the operator reads or merges by key.

The API server checks all others, in a dry run of the Deployment.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class ObjectShape:
    """An object; null removes it."""


@dataclass(frozen=True, slots=True)
class ListShape:
    """A list of objects.

    Attributes:
        key: a field of text that each object has; empty: none.
        is_removable: whether null removes the list.
        ours: shapes of fields of the operator's own containers.
    """

    key: str = ""
    is_removable: bool = False
    ours: Mapping[str, "ObjectShape | ListShape"] = field(default_factory=dict)

    @property
    def remedy(self) -> str:
        """What to write."""
        named = f" that have a {self.key}" if self.key else ""
        return f"write a list of objects{named}"


_OURS: Final[Mapping[str, ObjectShape | ListShape]] = {
    "env": ListShape("name"),
    "volumeMounts": ListShape("mountPath"),
    "securityContext": ObjectShape(),
}
_POD: Final[Mapping[str, ObjectShape | ListShape]] = {
    "securityContext": ObjectShape(),
    "containers": ListShape("name", ours=_OURS),
    "initContainers": ListShape("name", ours=_OURS),
    "volumes": ListShape("name"),
    "tolerations": ListShape(is_removable=True),
    "topologySpreadConstraints": ListShape(is_removable=True),
    "hostAliases": ListShape("ip", is_removable=True),
    "imagePullSecrets": ListShape("name", is_removable=True),
}
_TYPES: Final = {
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a text",
    list: "a list",
    type(None): "null",
}


def shape_errors(patch: Mapping[str, Any], place: str, containers: Sequence[str]) -> Iterator[str]:
    """Yield an error for each field of another type: path, remedy and what it is.

    Args:
        containers: names of the operator's own.
    """
    yield from _fields(patch, _POD, place, containers)


def _fields(
    found: Mapping[str, Any],
    shapes: Mapping[str, ObjectShape | ListShape],
    place: str,
    containers: Sequence[str],
) -> Iterator[str]:
    for name, shape in shapes.items():
        if name not in found:
            continue
        value, where = found[name], f"{place}.{name}"
        if isinstance(shape, ListShape):
            yield from _list(value, shape, where, containers)
        elif value is not None and not isinstance(value, Mapping):
            yield f"{where}: write an object; it is {_type(value)}"


def _list(value: Any, shape: ListShape, place: str, containers: Sequence[str]) -> Iterator[str]:
    if value is None and shape.is_removable:
        return
    if not isinstance(value, list):
        dash = ": put a dash before its first field" if isinstance(value, Mapping) else ""
        yield f"{place}: {shape.remedy}; it is {_type(value)}{dash}"
        return
    for index, item in enumerate(value):
        if not isinstance(item, Mapping):
            yield f"{place}[{index}]: {shape.remedy}; it is {_type(item)}"
        elif shape.key and not isinstance(item.get(shape.key), str):
            is_there = shape.key in item
            what = f"is {_type(item[shape.key])}" if is_there else "is missing"
            yield f"{place}[{index}]: {shape.remedy}; its {shape.key} {what}"
        elif item.get("name") in containers:
            yield from _fields(item, shape.ours, f"{place}[{item['name']}]", containers)


def _type(value: Any) -> str:
    return _TYPES.get(type(value), "an object")
