"""Which texts the patterns of a schema match, as far as that is plain."""

import re

from specdecode_engine.grammar.schemas.parts import Part, finite_values

# Characters, dots and classes without escapes, each repeated or not. Python reads them as
# ECMAScript does, and in little time, because few of them may be repeated.
_PLAIN = re.compile(r"\^?(?:(?:\[[\w.,:@ -]+\]|[\w.,:@/ -])[*+]?)*\$?", re.ASCII)
_MOST_REPEATED = 2
_MOST_CHARS = 256
_LITERAL = re.compile(r"\\([^\w\s])|([\w,:@/ -])", re.ASCII)


def matches(pattern: str, text: str) -> bool | None:
    """Return whether a pattern matches anywhere in a text; None if that is not plain."""
    repeated = pattern.count("*") + pattern.count("+")
    if not text.isprintable() or max(len(text), len(pattern)) > _MOST_CHARS:
        return None
    if repeated > _MOST_REPEATED or not _PLAIN.fullmatch(pattern):
        return None
    try:
        return re.search(pattern, text, re.ASCII) is not None
    except re.error:
        return None


def have_other_texts(one: Part, other: Part) -> bool:
    """Whether no text is valid in both, by their patterns, values and lengths."""
    first, second = one.get("pattern"), other.get("pattern")
    if isinstance(first, str) and isinstance(second, str):
        starts = literal_start(first), literal_start(second)
        if not starts[0].startswith(starts[1]) and not starts[1].startswith(starts[0]):
            return True
    return (
        _refuses_values(first, other)
        or _refuses_values(second, one)
        or _is_shorter(one, other)
        or _is_shorter(other, one)
    )


def literal_start(pattern: str) -> str:
    """Return the characters with which all texts begin that a pattern matches."""
    if not pattern.startswith("^") or "|" in pattern:
        return ""
    start, place = "", 1
    while found := _LITERAL.match(pattern, place):
        follows = pattern[found.end() : found.end() + 1]
        if follows in ("?", "*", "{"):
            break
        start += found[1] or found[2]
        place = found.end()
        if follows == "+":
            break
    return start


def _refuses_values(pattern: object, part: Part) -> bool:
    """Whether a pattern is known to match no text that a part lists."""
    values = finite_values(part)
    if not isinstance(pattern, str) or values is None:
        return False
    texts = [value for value in values if isinstance(value, str)]
    start = literal_start(pattern)
    return all(not text.startswith(start) or matches(pattern, text) is False for text in texts)


def _is_shorter(one: Part, other: Part) -> bool:
    longest, shortest = one.get("maxLength"), other.get("minLength")
    return type(longest) is int and type(shortest) is int and longest < shortest
