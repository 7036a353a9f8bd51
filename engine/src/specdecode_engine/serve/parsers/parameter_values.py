"""Arguments that a model writes one parameter at a time: text, or JSON where the schema allows."""

import json
import re
from functools import partial
from typing import Any

from specdecode_engine.serve.parsers.message import ParserContext
from specdecode_engine.serve.parsers.python_literals import read_literal
from specdecode_engine.serve.parsers.reading import Steps, StreamingParser
from specdecode_engine.serve.parsers.schema_types import type_of

# As chat templates write them in earlier calls, and models after it.
_PYTHON_CONSTANTS = {"True": "true", "False": "false", "None": "null"}
_PYTHON_STRING_IN_BRACKETS = re.compile(r"\s*[\[{(][\s\[{(]*'")

quoted = partial(json.dumps, ensure_ascii=False)


def quoted_part(text: str) -> str:
    """Return part of a JSON string."""
    return quoted(text)[1:-1]


def as_json(text: str, types: frozenset[str]) -> str:
    """Return a value as JSON of one of the types, else as a string.

    JSON is left as it is. A constant of Python is one of JSON, and where no string is permitted,
    any literal of Python is a value.
    """
    bare = text.strip()
    if is_json(bare, types):
        return bare
    literal = _PYTHON_CONSTANTS.get(bare)
    if literal is None and "string" not in types:
        literal = _literal_as_json(bare)
    if literal is not None and is_json(literal, types):
        return literal
    return quoted(text)


def is_json(text: str, types: frozenset[str]) -> bool:
    """Whether a text is a JSON value of one of the types."""
    try:
        value: Any = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return False
    return type_of(value) in types


def is_python(text: str) -> bool:
    """Whether a text begins a list, tuple or dict with a string as only Python writes it."""
    return _PYTHON_STRING_IN_BRACKETS.match(text) is not None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


class _LiteralReader(StreamingParser):
    """Reads one literal, and nothing after it."""

    def __init__(self) -> None:
        super().__init__(ParserContext())
        self.parts: list[str] = []
        self.is_literal = False

    def read(self) -> Steps[None]:
        is_whole = yield from read_literal(self, self.parts.append)
        yield from self.take_space()
        self.is_literal = is_whole and not len(self.buffer)


def _literal_as_json(text: str) -> str | None:
    reader = _LiteralReader()
    reader.push(text + "\n")  # which the end of the text does not cut
    reader.flush()
    return "".join(reader.parts) if reader.is_literal else None
