"""Calls in JSON after a marker: Granite 3, Hunyuan A13B, Jamba, Phi-4-mini, Apertus, InternLM 2.

A call is `{"name": "f", "arguments": {…}}`, in Apertus `{"f": {…}}`. Facts: vLLM's parsers
`granite`, `hunyuan_a13b`, `jamba`, `phi4_mini_json`, `apertus` and `internlm`, SGLang's
`apertus2509` and `interns1`, and llama.cpp's template of Phi-4-mini.
"""

from typing import ClassVar

from specdecode_engine.serve.parsers.buffer import Markers
from specdecode_engine.serve.parsers.json_call import JsonCallReader, read_marked_calls
from specdecode_engine.serve.parsers.reading import NAME, Steps, StreamingParser

GRANITE_TOKEN, GRANITE_TEXT, GRANITE_END = "<|tool_call|>", "<tool_call>", "</tool_call>"
CALLS, CALLS_END = "<tool_calls>", "</tool_calls>"
PHI_TOKEN, PHI_END, PHI_TEXT = "<|tool_call|>", "<|/tool_call|>", "functools"
ACTION, PLUGIN, ACTION_END = "<|action_start|>", "<|plugin|>", "<|action_end|>"
APERTUS, APERTUS_END = "<|tools_prefix|>", "<|tools_suffix|>"


class KeyedCallReader(JsonCallReader):
    """Reads an object whose only key is the name, and whose value are the arguments."""

    def _read_member(self) -> Steps[bool]:
        parser = self._parser
        key = yield from self._read_string()
        yield from self._take_space()
        if self._name is not None or (yield from parser.next_char()) != ":":
            return False
        self._take(1)
        yield from self._take_space()
        if key is None or not NAME.fullmatch(key) or (yield from parser.next_char()) != "{":
            return False
        self._name = key
        return (yield from self._read_arguments())


class JsonListParser(StreamingParser):
    """A list of calls, or one call, follows one of the markers."""

    begins: ClassVar[tuple[str, ...]]
    end: ClassVar[str]
    reader: ClassVar[type[JsonCallReader]] = JsonCallReader

    def read(self) -> Steps[None]:
        begins = Markers(*self.begins)
        while marker := (yield from self.read_until(begins, self.write_content)):
            yield from read_marked_calls(self, marker, self.end, self.reader)


class GraniteParser(JsonListParser):
    """`<|tool_call|>` is a token of Granite 3.0 and 3.2, `<tool_call>` text of 3.1; without end."""

    begins, end = (GRANITE_TOKEN, GRANITE_TEXT), GRANITE_END


class HunyuanA13BParser(JsonListParser):
    """`<tool_calls>[…]</tool_calls>`, also of Jamba."""

    begins, end = (CALLS,), CALLS_END


class Phi4MiniParser(JsonListParser):
    """`<|tool_call|>{…}<|/tool_call|>`, or `functools[…]`."""

    begins, end = (PHI_TOKEN, f"{PHI_TEXT}["), PHI_END


class ApertusParser(JsonListParser):
    """`<|tools_prefix|>[{"f": {…}}]<|tools_suffix|>`."""

    begins, end = (APERTUS,), APERTUS_END
    reader = KeyedCallReader


class InternLm2Parser(StreamingParser):
    """`<|action_start|><|plugin|>`, `{…}<|action_end|>`; other actions are content."""

    def read(self) -> Steps[None]:
        begin = Markers(ACTION)
        while (yield from self.read_until(begin, self.write_content)):
            opening = ACTION + (yield from self.take_space())
            if (yield from self.skip(PLUGIN)):
                yield from read_marked_calls(self, opening + PLUGIN, ACTION_END)
            else:
                self.write_content(opening)
