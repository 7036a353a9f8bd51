"""Gemma 4: `<|tool_call>call:NAME{key:value,…}<tool_call|>`; FunctionGemma with other tokens.

Keys are bare and strings stand between `<|"|>`; other values are written as in JSON.
"""

import re
from typing import ClassVar, NamedTuple

from specdecode_engine.serve.parsers.buffer import Markers
from specdecode_engine.serve.parsers.json_call import read_broken
from specdecode_engine.serve.parsers.message import ParserContext
from specdecode_engine.serve.parsers.parameter_values import quoted, quoted_part
from specdecode_engine.serve.parsers.python_literals import MAX_DEPTH, read_string, word_as_json
from specdecode_engine.serve.parsers.reading import NAME, NAME_CHARS, Steps, StreamingParser


class GemmaTokens(NamedTuple):
    """The tokens before and after a call, and on both sides of a string."""

    begin: str
    end: str
    string: str


TOKENS = GemmaTokens("<|tool_call>", "<tool_call|>", '<|"|>')
FUNCTION_TOKENS = GemmaTokens("<start_function_call>", "<end_function_call>", "<escape>")
CALL = "call:"
_KEY = re.compile(r"[^:,{}\[\]<]+")
_WORD = re.compile(r"[^,{}\[\]<]+")


class Gemma4Parser(StreamingParser):
    """Builds the JSON of the arguments.

    A bare value that is neither a word of JSON nor a number is a string.
    """

    tokens: ClassVar[GemmaTokens] = TOKENS

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._begin, self._end, self._string = map(Markers, self.tokens)

    def read(self) -> Steps[None]:
        while (yield from self.read_until(self._begin, self.write_content)):
            opening = self.tokens.begin + (yield from self.take_space())
            if (yield from self.skip(CALL)):
                opening += CALL
                name = yield from self.take_run(NAME_CHARS)
                if NAME.fullmatch(name) and (yield from self.next_char()) == "{":
                    yield from self._read_call(name)
                    continue
                opening += name
            self.write_content(opening)

    def _read_call(self, name: str) -> Steps[None]:
        self.begin_call(name)
        if (yield from self._read_object(0)):
            yield from self.take_space()
            yield from self.skip(self.tokens.end)
        else:
            yield from read_broken(self, self._end)

    def _read_object(self, depth: int) -> Steps[bool]:
        """Return whether the object, whose first character is next, is well-formed."""
        self.add_arguments(self.buffer.take(1))
        separator = ""
        yield from self.take_space()
        while not (yield from self.skip("}")):
            key = yield from self._read_key()
            if not (yield from self.skip(":")):
                is_cut = (yield from self.next_char()) == ""
                self.add_arguments("" if is_cut else key)
                return False
            self.add_arguments(f"{separator}{quoted(key.strip())}: ")
            separator = ", "
            if not (yield from self._read_value(depth)) or not (yield from self._is_next("}")):
                return False
        self.add_arguments("}")
        return True

    def _read_list(self, depth: int) -> Steps[bool]:
        self.add_arguments(self.buffer.take(1))
        separator = ""
        yield from self.take_space()
        while not (yield from self.skip("]")):
            self.add_arguments(separator)
            separator = ", "
            if not (yield from self._read_value(depth)) or not (yield from self._is_next("]")):
                return False
        self.add_arguments("]")
        return True

    def _is_next(self, closing: str) -> Steps[bool]:
        """Take a comma; return whether there was one, or the end of the collection is next."""
        yield from self.take_space()
        has_comma = yield from self.skip(",")
        yield from self.take_space()
        return has_comma or (yield from self.next_char()) == closing

    def _read_key(self) -> Steps[str]:
        """Return a key, which may be written as a string."""
        if not (yield from self.skip(self.tokens.string)):
            return (yield from self.take_run(_KEY))
        key, _ = yield from self.collect_until(self._string)
        return key

    def _read_value(self, depth: int) -> Steps[bool]:
        yield from self.take_space()
        if (yield from self.skip(self.tokens.string)):
            return (yield from self._read_string())
        char = yield from self.next_char()
        if char in ("{", "["):
            if depth >= MAX_DEPTH:
                return False
            read = self._read_object if char == "{" else self._read_list
            return (yield from read(depth + 1))
        if char == '"':
            return (yield from read_string(self, self.add_arguments))
        word = (yield from self.take_run(_WORD)).strip()
        if (yield from self.next_char()) == "":
            return False  # the text ends in the word
        self.add_arguments(word_as_json(word) or (quoted(word) if word else ""))
        return bool(word)

    def _read_string(self) -> Steps[bool]:
        self.add_arguments('"')
        end = yield from self.read_until(self._string, self._add_quoted, drops_cut=True)
        self.add_arguments('"' if end else "")
        return bool(end)

    def _add_quoted(self, text: str) -> None:
        self.add_arguments(quoted_part(text))


class FunctionGemmaParser(Gemma4Parser):
    """`<start_function_call>call:NAME{key:<escape>text<escape>}<end_function_call>`."""

    tokens = FUNCTION_TOKENS
