"""Values that may be keys, which errors and log lines do not repeat.

A key is easily given to the wrong flag or written into the wrong field.
"""

import re
from typing import Final

_MAY_BE_KEY: Final = re.compile(r"[A-Za-z0-9_+=~-]{20,}")
"""Longer than the names of choices; paths, URLs and addresses have other characters."""


def without_key(text: str) -> str:
    """Return a value, or its length where it may be a key."""
    return f"<{len(text)} characters>" if _MAY_BE_KEY.fullmatch(text) else text


def quoted(value: object) -> str:
    """Return the `repr` of a value of a document, without strings that may be keys."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(quoted, value))}]"
    return repr(without_key(value) if type(value) is str else value)
