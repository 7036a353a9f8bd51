"""Python literals in a stream, written as JSON: strings, numbers, lists, dicts, True, False, None.

JSON's own words and escapes are read too.
"""

import json
import math
import re
from functools import partial

from specdecode_engine.serve.parsers.reading import Emit, Steps, StreamingParser

MAX_DEPTH = 64

_WORD = re.compile(r"[\w.+-]+")
_WORDS = {"True": "true", "False": "false", "None": "null"} | {
    word: word for word in ("true", "false", "null")
}
_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_PYTHON_NUMBER = re.compile(r"[+-]?([0-9][0-9_]*\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_MAX_NUMBER_CHARS = 400
_IN_STRING = {quote: re.compile(rf"[^{quote}\\]+") for quote in "'\""}
_ESCAPES = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0",
    "\\": "\\", "'": "'", '"': '"', "/": "/", "\n": "",
}  # fmt: skip
_CODE_POINTS = {"x": 2, "u": 4, "U": 8}
_HEX = re.compile(r"[0-9a-fA-F]")

quoted = partial(json.dumps, ensure_ascii=False)


def read_literal(parser: StreamingParser, emit: Emit, depth: int = 0) -> Steps[bool]:
    """Pass on a literal as JSON; return False at the text, or the end, that breaks it."""
    yield from parser.take_space()
    char = yield from parser.next_char()
    if char in ("'", '"'):
        return (yield from read_string(parser, emit))
    if char in ("[", "{"):
        return depth < MAX_DEPTH and (yield from _read_items(parser, emit, depth))
    word = word_as_json((yield from parser.take_run(_WORD)))
    if (yield from parser.next_char()) == "":
        return False  # the text ends in the word
    emit(word or "")
    return word is not None


def _read_items(parser: StreamingParser, emit: Emit, depth: int) -> Steps[bool]:
    """Read a list or a dict; a comma may follow the last item."""
    opening = parser.buffer.take(1)
    closing = "]" if opening == "[" else "}"
    emit(opening)
    separator = ""
    yield from parser.take_space()
    while not (yield from parser.skip(closing)):
        emit(separator)
        separator = ", "
        if opening == "{" and not (yield from _read_key(parser, emit)):
            return False
        if not (yield from read_literal(parser, emit, depth + 1)):
            return False
        yield from parser.take_space()
        has_comma = yield from parser.skip(",")
        yield from parser.take_space()
        if not has_comma and (yield from parser.next_char()) != closing:
            return False
    emit(closing)
    return True


def _read_key(parser: StreamingParser, emit: Emit) -> Steps[bool]:
    """Read the key of a dict, a string, and the colon."""
    if (yield from parser.next_char()) not in ("'", '"'):
        return False
    if not (yield from read_string(parser, emit)):
        return False
    yield from parser.take_space()
    if not (yield from parser.skip(":")):
        return False
    emit(": ")
    return True


def read_string(parser: StreamingParser, emit: Emit) -> Steps[bool]:
    """Read a string in single or triple quotes; line breaks are allowed in both."""
    quote = parser.buffer.take(1)
    is_triple = yield from parser.skip(quote * 2)
    if (yield from parser.next_char()) == "":
        return False
    emit('"')
    while True:
        emit(quoted(parser.buffer.take_while(_IN_STRING[quote]))[1:-1])
        char = yield from parser.next_char()
        if not char:
            return False
        if char == "\\":
            yield from _read_escape(parser, emit)
        elif (yield from parser.skip(quote * 3 if is_triple else quote)):
            emit('"')
            return True
        elif char == quote:
            emit(quoted(parser.buffer.take(1))[1:-1])


def _read_escape(parser: StreamingParser, emit: Emit) -> Steps[None]:
    parser.buffer.take(1)
    char = yield from parser.next_char()
    parser.buffer.take(1)
    if char in _ESCAPES:
        emit(quoted(_ESCAPES[char])[1:-1])
        return
    digits = ""
    for _ in range(_CODE_POINTS.get(char, 0)):
        yield from parser.next_char()
        digits += parser.buffer.take_while(_HEX)
    is_short = len(digits) < _CODE_POINTS.get(char, 0)
    if not char or (is_short and (yield from parser.next_char()) == ""):
        return  # the text ends in it
    code = int(digits, 16) if len(digits) == _CODE_POINTS.get(char) else None
    if code is None or code > 0x10FFFF:
        emit(quoted("\\" + char + digits)[1:-1])
    else:  # a surrogate as an escape, of which two make a character
        emit(json.dumps(chr(code), ensure_ascii=0xD800 <= code < 0xE000)[1:-1])


def word_as_json(word: str) -> str | None:
    """Return a word or a number as JSON; None if it is neither."""
    if word in _WORDS or not word:
        return _WORDS.get(word)
    if len(word) > _MAX_NUMBER_CHARS:
        return None
    if _JSON_NUMBER.fullmatch(word):
        return word
    if not _PYTHON_NUMBER.fullmatch(word) or "__" in word or word.endswith("_"):
        return None
    number = float(word)
    if not math.isfinite(number):
        return None
    is_whole = not set(word) & set(".eE")
    return str(int(word)) if is_whole else repr(number)
