"""A call as a JSON object: `{"name": "f", "arguments": {…}}`, also with `parameters`."""

import json
from collections.abc import Callable
from enum import Enum, auto

from specdecode_engine.serve.parsers.buffer import Markers
from specdecode_engine.serve.parsers.reading import NAME, Emit, Steps, StreamingParser

_ARGUMENTS = ("arguments", "parameters")
_OTHERS = ("type", "id")


class CallEnd(Enum):
    """How the text of a call ended."""

    NOT_A_CALL = auto()  # it was written as content
    COMPLETE = auto()
    BROKEN = auto()  # within the arguments


class JsonCallReader:
    """Reads one call object.

    Arguments are passed on as the model wrote them, once the name is known. Arguments in a string
    are decoded.

    Args:
        parser: receives the call.
        before: text already taken, which is content too if this is not a call.
        is_bare: nothing marks the object as a call, so that it must have both keys, no unknown key
            and the name of a tool of the request.
        name_key: the key of the name.
    """

    def __init__(
        self,
        parser: StreamingParser,
        before: str = "",
        is_bare: bool = False,
        name_key: str = "name",
    ) -> None:
        self._parser = parser
        self._is_bare = is_bare
        self._name_key = name_key
        self._taken = [before]
        self._name: str | None = None
        self._arguments: list[str] = []
        self._is_begun = self._has_arguments = False

    def read(self) -> Steps[CallEnd]:
        """Read the object that begins with the next character, a `{`."""
        is_whole = yield from self._read_object()
        if is_whole and self._name is not None and not self._is_begun and not self._is_bare:
            self._arguments = ["{}"]
            self._has_arguments = True
            self._begin()
        if not self._is_begun:
            self._parser.write_content("".join(self._taken))
            return CallEnd.NOT_A_CALL
        return CallEnd.COMPLETE if self._has_arguments else CallEnd.BROKEN

    def _read_object(self) -> Steps[bool]:
        """Return whether the object is well-formed, up to its end."""
        parser = self._parser
        self._take(1)
        yield from self._take_space()
        if (yield from parser.next_char()) == "}":
            self._take(1)
            return True
        while (yield from self._read_member()):
            yield from self._take_space()
            char = yield from parser.next_char()
            if char not in (",", "}") or not char:
                return False
            self._take(1)
            if char == "}":
                return True
            yield from self._take_space()
        return False

    def _read_member(self) -> Steps[bool]:
        parser = self._parser
        key = yield from self._read_string()
        yield from self._take_space()
        if key is None or (yield from parser.next_char()) != ":":
            return False
        self._take(1)
        yield from self._take_space()
        if key == self._name_key and self._name is None:
            return (yield from self._read_name())
        if key in _ARGUMENTS and not self._has_arguments:
            return (yield from self._read_arguments())
        if self._is_bare and key not in _OTHERS:
            return False
        return (yield from parser.read_json(self._keep))

    def _read_name(self) -> Steps[bool]:
        name = yield from self._read_string()
        if name is None or not NAME.fullmatch(name):
            return False
        if self._is_bare and not self._parser.is_tool(name):
            return False
        self._name = name
        if self._has_arguments:
            self._begin()
        return True

    def _read_arguments(self) -> Steps[bool]:
        parser = self._parser
        if (yield from parser.next_char()) == '"':
            text = yield from self._read_string()
            if text is None:
                return False
            self._has_arguments = True
            self._arguments = [without_surrogates(text)]
            if self._name is not None:
                self._begin()
            return True
        if self._name is not None:
            self._begin()
        self._has_arguments = yield from parser.read_json(self._add_arguments)
        return self._has_arguments

    def _begin(self) -> None:
        assert self._name is not None
        self._is_begun = True
        self._taken = []
        self._parser.begin_call(self._name)
        for text in self._arguments:
            self._parser.add_arguments(text)

    def _add_arguments(self, text: str) -> None:
        if self._is_begun:
            self._parser.add_arguments(text)
        else:
            self._keep(text)
            self._arguments.append(text)

    def _keep(self, text: str) -> None:
        if not self._is_begun:
            self._taken.append(text)

    def _take(self, count: int) -> None:
        self._keep(self._parser.buffer.take(count))

    def _take_space(self) -> Steps[None]:
        self._keep((yield from self._parser.take_space()))

    def _read_string(self) -> Steps[str | None]:
        """Return the value of a JSON string; None if there is none or it is malformed."""
        if (yield from self._parser.next_char()) != '"':
            return None
        parts: list[str] = []
        is_whole = yield from self._parser.read_json_string(parts.append)
        text = "".join(parts)
        self._keep(text)
        if not is_whole:
            return None
        try:
            return str(json.loads(text, strict=False))
        except ValueError:
            return None


MakeReader = Callable[[StreamingParser, str], JsonCallReader]


def read_call_objects(
    parser: StreamingParser, before: str, make_reader: MakeReader = JsonCallReader
) -> Steps[CallEnd]:
    """Read call objects with commas between them, and the bracket after them, which may be missing.

    Args:
        before: text already taken before the first object, which begins with the next character.
        make_reader: returns the reader of an object after a text.
    """
    while True:
        end = yield from make_reader(parser, before).read()
        if end is not CallEnd.COMPLETE:
            return end
        before = yield from parser.take_space()
        if (yield from parser.skip(",")):
            before += "," + (yield from parser.take_space())
        if (yield from parser.next_char()) != "{":
            if not (yield from parser.skip("]")):
                parser.write_content(before)
            return end


def read_marked_calls(
    parser: StreamingParser,
    marker: str,
    end_marker: str,
    make_reader: MakeReader = JsonCallReader,
) -> Steps[None]:
    """Read a call object, or a list of them, after a marker; what is neither is content.

    Args:
        marker: already taken.
        end_marker: of the calls; it may be missing, and ends calls that break off.
    """
    opening = marker + (yield from parser.take_space())
    if (yield from parser.skip("[")):
        opening += "[" + (yield from parser.take_space())
    if (yield from parser.next_char()) != "{":
        parser.write_content(opening)
        return
    end = yield from read_call_objects(parser, opening, make_reader)
    if end is CallEnd.BROKEN:
        yield from read_broken(parser, Markers(end_marker))
    elif end is CallEnd.COMPLETE:
        space = yield from parser.take_space()
        if not (yield from parser.skip(end_marker)):
            parser.write_content(space)


def without_surrogates(text: str) -> str:
    """Replace lone surrogates, which JSON's escapes may leave in a string."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def read_broken(parser: StreamingParser, markers: Markers) -> Steps[str]:
    """Add the rest of a broken call to its arguments, up to a marker, which is returned."""
    emit: Emit = parser.add_arguments
    return (yield from parser.read_until(markers, emit))
