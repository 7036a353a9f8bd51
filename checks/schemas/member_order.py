"""Texts of a value whose objects have their members in another order, as a grammar takes them.

JSON Schema gives members no order, and grammars fix one: a model writes what the grammar asks for.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

_MOST_TRIES = 20_000

TakesPrefix = Callable[[str], bool]
"""Whether a grammar admits a text, or any text that begins with it."""


class TooManyTries(Exception):
    """The orders of a value are more than are tried."""


def in_some_order(text: str, takes_prefix: TakesPrefix, accepts: TakesPrefix) -> bool:
    """Return whether a grammar accepts the value of a text in any of its orders."""
    tries = iter(range(_MOST_TRIES))

    def takes(prefix: str) -> bool:
        if next(tries, None) is None:
            raise TooManyTries
        return takes_prefix(prefix)

    try:
        return any(accepts(found) for found in _written(json.loads(text), "", takes))
    except TooManyTries:
        return False


def _written(value: Any, prefix: str, takes: TakesPrefix) -> Iterator[str]:
    """Yield the texts of a prefix and a value that the grammar takes."""
    if isinstance(value, dict) and value:
        yield from _members(value, prefix + "{", takes)
    elif isinstance(value, list) and value:
        yield from _items(value, prefix + "[", takes)
    elif takes(found := prefix + json.dumps(value, ensure_ascii=False)):
        yield found


def _members(left: dict[str, Any], prefix: str, takes: TakesPrefix) -> Iterator[str]:
    for name, value in left.items():
        start = f"{prefix}{json.dumps(name, ensure_ascii=False)}: "
        if not takes(start):
            continue
        others = {key: each for key, each in left.items() if key != name}
        for found in _written(value, start, takes):
            if others:
                yield from _members(others, found + ", ", takes)
            else:
                yield found + "}"


def _items(left: list[Any], prefix: str, takes: TakesPrefix) -> Iterator[str]:
    first, *others = left
    for found in _written(first, prefix, takes):
        if others:
            yield from _items(others, found + ", ", takes)
        else:
            yield found + "]"
