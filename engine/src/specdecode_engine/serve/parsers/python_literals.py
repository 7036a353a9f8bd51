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
_PYTHON_BASES = re.compile(r"[+-]?0([xX][0-9a-fA-F_]+|[oO][0-7_]+|[bB][01_]+)")
_BRACKETS = {"[": "]", "{": "}", "(": ")"}
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
    if char in _BRACKETS:
        read = _read_parentheses if char == "(" else _read_items
        return depth < MAX_DEPTH and (yield from read(parser, emit, depth))
    word = word_as_json((yield from parser.take_run(_WORD)))
    if (yield from parser.next_char()) == "":
        return False  # the text ends in the word
    emit(word or "")
    return word is not None


def _read_parentheses(parser: StreamingParser, emit: Emit, depth: int) -> Steps[bool]:
    """Read a tuple, which becomes a list, or a value in parentheses."""
    parser.buffer.take(1)
    yield from parser.take_space()
    first: list[str] = []
    if not (yield from parser.skip(")")):
        if not (yield from read_literal(parser, first.append, depth + 1)):
            return False
        yield from parser.take_space()
        if (yield from parser.skip(")")):
            emit("".join(first))
            return True
        if not (yield from parser.skip(",")):
            return False
        yield from parser.take_space()
        emit("[" + "".join(first))
        return (yield from _read_rest(parser, emit, depth, ")", ", "))
    emit("[]")
    return True


def _read_items(parser: StreamingParser, emit: Emit, depth: int) -> Steps[bool]:
    """Read a list or a dict; a comma may follow the last item."""
    opening = parser.buffer.take(1)
    emit(opening)
    yield from parser.take_space()
    return (yield from _read_rest(parser, emit, depth, _BRACKETS[opening], ""))


def _read_rest(
    parser: StreamingParser, emit: Emit, depth: int, closing: str, separator: str
) -> Steps[bool]:
    """Read items up to the closing bracket; `separator` precedes the next one."""
    while not (yield from parser.skip(closing)):
        emit(separator)
        separator = ", "
        if closing == "}" and not (yield from _read_key(parser, emit)):
            return False
        if not (yield from read_literal(parser, emit, depth + 1)):
            return False
        yield from parser.take_space()
        has_comma = yield from parser.skip(",")
        yield from parser.take_space()
        if not has_comma and (yield from parser.next_char()) != closing:
            return False
    emit("}" if closing == "}" else "]")
    return True


def _read_key(parser: StreamingParser, emit: Emit) -> Steps[bool]:
    """Read the key of a dict, and the colon; a number or constant becomes a string, as in JSON."""
    if (yield from parser.next_char()) in ("'", '"'):
        if not (yield from read_string(parser, emit)):
            return False
    else:
        word = word_as_json((yield from parser.take_run(_WORD)))
        if word is None:
            return False
        emit(quoted(word))
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
    if "__" in word or word.endswith("_"):
        return None
    if _PYTHON_BASES.fullmatch(word):
        return str(int(word, 0))
    if not _PYTHON_NUMBER.fullmatch(word):
        return None
    number = float(word)
    if not math.isfinite(number):
        return None
    is_whole = not set(word) & set(".eE")
    return str(int(word)) if is_whole else repr(number)
