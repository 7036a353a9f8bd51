"""Llama 3.x: `{"name": …, "parameters": {…}}`, bare or after `<|python_tag|>`, separated by `;`."""

import re

from specdecode_engine.serve.parsers.buffer import Markers
from specdecode_engine.serve.parsers.json_call import CallEnd, JsonCallReader, read_broken
from specdecode_engine.serve.parsers.reading import Steps, StreamingParser

PYTHON_TAG = "<|python_tag|>"
_TAG = Markers(PYTHON_TAG)
_SEPARATOR = re.compile(r"[\s;]+")


class LlamaJsonParser(StreamingParser):
    """Bare calls begin the text; calls after the tag may follow content.

    A call of a built-in tool in Python (`brave_search.call(…)`) is content.
    """

    def read(self) -> Steps[None]:
        space = yield from self.take_space()
        if (yield from self.next_char()) == "{":
            yield from self._read_calls(space, is_bare=True)
        else:
            self.write_content(space)
        while (yield from self.read_until(_TAG, self.write_content)):
            space = yield from self.take_space()
            if (yield from self.next_char()) == "{":
                yield from self._read_calls(PYTHON_TAG + space, is_bare=False)
            else:
                self.write_content(PYTHON_TAG + space)

    def _read_calls(self, before: str, is_bare: bool) -> Steps[None]:
        """Read call objects; the first one begins with the next character."""
        while True:
            end = yield from JsonCallReader(self, before, is_bare).read()
            if end is CallEnd.NOT_A_CALL:
                return
            if end is CallEnd.BROKEN:
                yield from read_broken(self, _TAG)
                return
            before = yield from self.take_run(_SEPARATOR)
            if (yield from self.next_char()) != "{":
                self.write_content(before.strip(";"))
                return
