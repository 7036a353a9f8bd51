"""Complete calls in a thought that is never closed: some models leave out the closing tag."""

import json
from collections.abc import Callable

from specdecode_engine.serve.parsers.buffer import Markers
from specdecode_engine.serve.parsers.message import MessageParser, ToolCallDelta

MAX_UNFINISHED = 8
"""Calls that last to the end of the text without being complete; no more of them are read."""

_FIRST_CHARS = 64


class CallFinder:
    """Finds a call in a text.

    Args:
        markers: what begins calls in the format.
        make_parser: returns a new parser of calls.
    """

    def __init__(self, markers: tuple[str, ...], make_parser: Callable[[], MessageParser]) -> None:
        self.markers = markers
        self._pattern = Markers(*markers).pattern
        self._make_parser = make_parser

    def find(self, text: str) -> int | None:
        """Return where the first complete call begins; None if there is none.

        A call is complete if its arguments are a JSON object. Each marker is tried with a parser
        of its own, up to the first text that shows what it is.
        """
        unfinished = 0
        for marker in self._pattern.finditer(text):
            is_complete, is_at_end = self._read_call(text, marker.start())
            if is_complete:
                return marker.start()
            unfinished += is_at_end
            if unfinished == MAX_UNFINISHED:
                break
        return None

    def _read_call(self, text: str, start: int) -> tuple[bool, bool]:
        """Return whether a complete call begins here, and whether all of the text was read."""
        parser = self._make_parser()
        arguments: list[str] = []
        is_call, size = False, _FIRST_CHARS
        while start <= len(text):
            is_last = start + size > len(text)
            deltas = parser.push(text[start : start + size])
            for delta in [*deltas, *(parser.flush() if is_last else ())]:
                if not isinstance(delta, ToolCallDelta):
                    return is_call and _is_object("".join(arguments)), False
                if delta.index > 0:
                    return _is_object("".join(arguments)), False
                is_call = True
                arguments.append(delta.arguments)
            start, size = start + size, 2 * size
        return is_call and _is_object("".join(arguments)), is_call


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
