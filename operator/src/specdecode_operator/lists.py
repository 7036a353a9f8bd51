"""Parses lists of the API server item by item.

`json.loads` of 500 pods takes 50 ms, during which no other thread runs. Called in a thread, these
functions let the event loop continue after each item.
"""

import json
import re
from typing import Any

from specdecode_operator.kinds import Manifest

_ITEMS = re.compile(r'"items"\s*:\s*\[\s*')
"""The first match is the list's own field: quotes in strings are escaped, and what the API server
writes before it, `ListMeta`, has no such field."""
_NEXT = re.compile(r"\s*(,|\])\s*")


def read_list(text: str) -> Manifest:
    """Parse a list as `json.loads` does.

    Raises:
        ValueError: it is not valid JSON.
    """
    begin = _ITEMS.search(text)
    if begin is None:
        whole: Manifest = json.loads(text)
        return whole
    items, end = _read_items(text, begin.end())
    rest: Manifest = json.loads(f'{text[: begin.start()]}"items":[]{text[end:]}')
    return rest | {"items": items}


def _read_items(text: str, at: int) -> tuple[list[Any], int]:
    """The items from a position after the opening bracket, and where the list ends."""
    if text[at : at + 1] == "]":
        return [], at + 1
    items, decode = [], json.JSONDecoder().raw_decode
    while True:
        item, at = decode(text, at)
        items.append(item)
        separator = _NEXT.match(text, at)
        if separator is None:
            raise ValueError(f"the list has no comma or bracket at character {at}")
        at = separator.end()
        if separator[1] == "]":
            return items, at
