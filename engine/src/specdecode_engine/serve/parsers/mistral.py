"""Mistral: `[TOOL_CALLS][{"name": …, "arguments": {…}}]`, since v11 `[TOOL_CALLS]name[ARGS]{…}`."""

from specdecode_engine.serve.parsers.buffer import Markers
from specdecode_engine.serve.parsers.json_call import CallEnd, read_broken, read_call_objects
from specdecode_engine.serve.parsers.reading import NAME, NAME_CHARS, Steps, StreamingParser

TOOL_CALLS, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_BEGIN = Markers(TOOL_CALLS)


class MistralParser(StreamingParser):
    """Reads both forms; `[ARGS]` and `[CALL_ID]id` may be missing."""

    def read(self) -> Steps[None]:
        is_marked = yield from self._next_marker()
        while is_marked:
            space = yield from self.take_space()
            char = yield from self.next_char()
            if char == "[":
                is_marked = yield from self._read_list(TOOL_CALLS + space)
            elif char == "{":
                is_marked = yield from self._read_objects(TOOL_CALLS + space)
            else:
                is_marked = yield from self._read_named(TOOL_CALLS + space)

    def _next_marker(self) -> Steps[bool]:
        return bool((yield from self.read_until(_BEGIN, self.write_content)))

    def _read_list(self, before: str) -> Steps[bool]:
        if (yield from self.skip(TOOL_CALLS)):
            self.write_content(before)
            return True
        before += self.buffer.take(1) + (yield from self.take_space())
        if (yield from self.next_char()) == "{":
            return (yield from self._read_objects(before))
        self.write_content(before)
        return (yield from self._next_marker())

    def _read_objects(self, before: str) -> Steps[bool]:
        end = yield from read_call_objects(self, before)
        if end is CallEnd.BROKEN:
            return bool((yield from read_broken(self, _BEGIN)))
        return (yield from self._next_marker())

    def _read_named(self, before: str) -> Steps[bool]:
        name = yield from self.take_run(NAME_CHARS)
        taken = before + name
        if (yield from self.skip(CALL_ID)):
            taken += CALL_ID + (yield from self.take_run(NAME_CHARS))
        has_mark = yield from self.skip(ARGS)
        space = yield from self.take_space()
        taken += (ARGS if has_mark else "") + space
        is_call = has_mark or (yield from self.next_char()) == "{"
        if not is_call or not NAME.fullmatch(name):
            self.write_content(taken)
            return (yield from self._next_marker())
        self.begin_call(name)
        if (yield from self.read_json(self.add_arguments)):
            return (yield from self._next_marker())
        return bool((yield from read_broken(self, _BEGIN)))
