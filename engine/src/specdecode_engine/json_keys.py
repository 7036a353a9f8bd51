"""Repeated keys in JSON, of which parsers keep the last."""

import json

SHOWN_KEY_CHARS = 80


def repeated_key(data: str | bytes) -> str:
    """Return the path of the first repeated key, as in `table.batchSizes[0].from`, or ""."""
    # Integers stay text, because Python limits their digits.
    return _repeated_key(json.loads(data, object_pairs_hook=_Pairs, parse_int=str), "")


class _Pairs(list[tuple[str, object]]):
    """The keys and values of an object."""


def _repeated_key(value: object, place: str) -> str:
    keys = set[str]()
    children: list[tuple[str, object]] = []
    if isinstance(value, _Pairs):
        for key, child in value:
            path = f"{place}.{key[:SHOWN_KEY_CHARS]}".removeprefix(".")
            if key in keys:
                return path
            keys.add(key)
            children.append((path, child))
    elif isinstance(value, list):
        children = [(f"{place}[{number}]", child) for number, child in enumerate(value)]
    return next(filter(None, (_repeated_key(child, path) for path, child in children)), "")
