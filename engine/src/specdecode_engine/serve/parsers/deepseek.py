"""DeepSeek V3 and R1, and V3.1: calls between tokens `<｜tool▁call▁begin｜>` and `…end｜>`."""

from specdecode_engine.serve.parsers.buffer import Markers
from specdecode_engine.serve.parsers.json_call import read_broken
from specdecode_engine.serve.parsers.reading import NAME, Steps, StreamingParser

CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
_OUTSIDE = Markers(CALLS_BEGIN, CALLS_END, CALL_BEGIN)
_HEADER = Markers(SEPARATOR, CALL_BEGIN, CALL_END, CALLS_END)
_LINE = Markers("\n", CALL_BEGIN, CALL_END, CALLS_END)
_CALL_END = Markers(CALL_END)


class DeepSeekV31Parser(StreamingParser):
    """`NAME<｜tool▁sep｜>{…}`."""

    def read(self) -> Steps[None]:
        while marker := (yield from self.read_until(_OUTSIDE, self.write_content)):
            if marker == CALL_BEGIN:
                yield from self._read_call()

    def _read_call(self) -> Steps[None]:
        name, taken = yield from self.read_header()
        if not NAME.fullmatch(name):
            self.write_content(CALL_BEGIN + taken)
            return
        self.begin_call(name)
        yield from self.skip_fence()
        if (yield from self.skip(CALL_END)):
            self.add_arguments("{}")
            return
        if not (yield from self.read_json(self.add_arguments)):
            yield from read_broken(self, _CALL_END)
            return
        yield from self.skip_fence()
        yield from self.skip(CALL_END)

    def read_header(self) -> Steps[tuple[str, str]]:
        """Return the name, empty if it is malformed, and all text taken."""
        name, marker = yield from self.collect_until(_HEADER)
        return name.strip() if marker == SEPARATOR else "", name + marker

    def skip_fence(self) -> Steps[None]:
        """Skip white space and the borders of a block of code."""
        yield from self.take_space()
        if (yield from self.skip("```")):
            yield from self.skip("json")
            yield from self.take_space()


class DeepSeekV3Parser(DeepSeekV31Parser):
    """`function<｜tool▁sep｜>NAME`, a line break, and the arguments in a block of code."""

    def read_header(self) -> Steps[tuple[str, str]]:
        kind, taken = yield from super().read_header()
        if not kind:
            return "", taken
        name, marker = yield from self.collect_until(_LINE)
        return name.strip() if marker == "\n" else "", taken + name + marker
