"""Patterns of strings and of property names: classes of characters, and look-around.

llguidance 1.9.1 takes a class that contains all control characters for one that contains the quote
and the backslash too: the texts that the pattern `[^"]` excludes are admitted. So the classes here
leave out the character U+0000, and nothing else changes.
"""

import re
from collections.abc import Iterator

from specdecode_engine.grammar.schemas.parts import Document, Part, named_parts

_NUL = r"\x00"
# An escaped character, or the beginning of a negated class and what is literal there.
_CLASS = re.compile(r"(?P<escaped>\\.)|\[\^\]?", re.DOTALL)
_LOOK_AROUND = re.compile(r"(?<!\\)(?:\\\\)*(?:\(\?(?:[=!]|<[=!])|\\[1-9])")


def rewrite_classes(part: Part, document: Document) -> None:
    """Let negated classes exclude the quote and the backslash if they name them."""
    del document
    if isinstance(pattern := part.get("pattern"), str):
        part["pattern"] = without_nul(pattern)
    if named := named_parts(part, "patternProperties"):
        part["patternProperties"] = {without_nul(each): value for each, value in named.items()}


def without_nul(pattern: str) -> str:
    """Return a pattern whose negated classes do not contain U+0000."""
    return "".join(_with_nul_excluded(pattern))


def _with_nul_excluded(pattern: str) -> Iterator[str]:
    end = 0
    for found in _CLASS.finditer(pattern):
        yield pattern[end : found.end()]
        end = found.end()
        if found["escaped"] or pattern.startswith(_NUL, end):
            continue
        # A `]` or `-` that comes first is a member of the class.
        yield _NUL + ("\\" if pattern[end : end + 1] == "-" else "")
    yield pattern[end:]


def ignore_patterns(part: Part, document: Document) -> None:
    """Drop patterns that the library cannot hold; for schemas that are not strict."""
    del document
    if _is_beyond(part.get("pattern")):
        del part["pattern"]
    patterns = named_parts(part, "patternProperties")
    if any(map(_is_beyond, patterns)):
        # A property of these names must not fall under the schema of all others.
        del part["patternProperties"]
        part.pop("additionalProperties", None)


def _is_beyond(pattern: object) -> bool:
    return isinstance(pattern, str) and _LOOK_AROUND.search(pattern) is not None
