"""DeepSeek V3 and R1, and V3.1: calls between tokens `<｜tool▁call▁begin｜>` and `…end｜>`.

Kimi K2 writes them in the same order with tokens of its own.
"""

from typing import ClassVar, NamedTuple

from specdecode_engine.serve.parsers.buffer import Markers
from specdecode_engine.serve.parsers.json_call import read_broken
from specdecode_engine.serve.parsers.message import ParserContext
from specdecode_engine.serve.parsers.reading import NAME, Steps, StreamingParser

CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"


class CallTokens(NamedTuple):
    """The tokens around all calls, and around a call and between its name and arguments."""

    calls_begin: str
    calls_end: str
    begin: str
    separator: str
    end: str


TOKENS = CallTokens(CALLS_BEGIN, CALLS_END, CALL_BEGIN, SEPARATOR, CALL_END)


class DeepSeekV31Parser(StreamingParser):
    """`NAME<｜tool▁sep｜>{…}`."""

    tokens: ClassVar[CallTokens] = TOKENS

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        tokens = self.tokens
        self._outside = Markers(tokens.calls_begin, tokens.calls_end, tokens.begin)
        self._header = Markers(tokens.separator, tokens.begin, tokens.end, tokens.calls_end)
        self._call_end = Markers(tokens.end)

    def read(self) -> Steps[None]:
        while marker := (yield from self.read_until(self._outside, self.write_content)):
            if marker == self.tokens.begin and (yield from self._read_call()):
                space = yield from self.take_space()
                if not (yield from self.skip(self.tokens.calls_end)):
                    self.write_content(space)

    def _read_call(self) -> Steps[bool]:
        """Read a call after its first token; return whether it is one."""
        name, taken = yield from self.read_header()
        if not NAME.fullmatch(name):
            self.write_content(self.tokens.begin + taken)
            return False
        self.begin_call(name)
        yield from self.skip_fence()
        if (yield from self.skip(self.tokens.end)):
            self.add_arguments("{}")
            return True
        if not (yield from self.read_json(self.add_arguments)):
            yield from read_broken(self, self._call_end)
            return True
        yield from self.skip_fence()
        yield from self.skip(self.tokens.end)
        return True

    def read_header(self) -> Steps[tuple[str, str]]:
        """Return the name, empty if it is malformed, and all text taken."""
        name, marker = yield from self.collect_until(self._header)
        return name.strip() if marker == self.tokens.separator else "", name + marker

    def skip_fence(self) -> Steps[None]:
        """Skip white space and the borders of a block of code."""
        yield from self.take_space()
        if (yield from self.skip("```")):
            yield from self.skip("json")
            yield from self.take_space()


_LINE = Markers("\n", CALL_BEGIN, CALL_END, CALLS_END)


class DeepSeekV3Parser(DeepSeekV31Parser):
    """`function<｜tool▁sep｜>NAME`, a line break, and the arguments in a block of code."""

    def read_header(self) -> Steps[tuple[str, str]]:
        kind, taken = yield from super().read_header()
        if not kind:
            return "", taken
        name, marker = yield from self.collect_until(_LINE)
        return name.strip() if marker == "\n" else "", taken + name + marker


KIMI_TOKENS = CallTokens(
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)
KIMI_FUNCTIONS = "functions."


class KimiK2Parser(DeepSeekV31Parser):
    """`functions.NAME:INDEX<|tool_call_argument_begin|>{…}`."""

    tokens = KIMI_TOKENS

    def read_header(self) -> Steps[tuple[str, str]]:
        call_id, taken = yield from super().read_header()
        name, _, index = call_id.rpartition(":")
        return (name if index.isdecimal() else call_id).removeprefix(KIMI_FUNCTIONS), taken
