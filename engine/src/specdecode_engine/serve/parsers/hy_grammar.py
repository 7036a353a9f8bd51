"""Grammars of the calls of Hy3 and Hy4, whose tags may have a suffix."""

from specdecode_engine.serve.parsers import hy
from specdecode_engine.serve.parsers.call_grammar import ToolSchema, repeated
from specdecode_engine.serve.parsers.glm import CallTags
from specdecode_engine.serve.parsers.glm_grammar import Glm45Calls
from specdecode_engine.serve.parsers.lark import literal


class Hy3Calls(Glm45Calls):
    """The suffix is that of the special tokens."""

    @property
    def tags(self) -> CallTags:
        return hy.call_tags(self._suffix)

    @property
    def triggers(self) -> tuple[str, ...]:
        return (self._tag(hy.CALLS),)

    def calls(self, is_parallel: bool) -> str:
        return f"{self.rules.marker(self.triggers[0])} {self._rest(is_parallel)}"

    def after_trigger(self) -> str:
        return self._rest(True)

    def _rest(self, is_parallel: bool) -> str:
        line_end, begin, end = literal(self.line_end), self.tags.begin, self.tags.end
        call = f"{self.rules.marker(begin)} {self.one_of(self.call)} {self.rules.marker(end)}"
        calls = repeated(self.rules.add(call), line_end, is_parallel)
        return f"{line_end} {calls} {line_end} {self.rules.marker(self._tag(hy.CALLS_END))}"

    def name(self, tool: ToolSchema) -> str:
        separator = self.rules.marker(self._tag(hy.SEPARATOR))
        return f"{literal(tool.name)} {separator} {literal(self.line_end)}"

    def _tag(self, tag: str) -> str:
        return hy.suffixed(tag, self._suffix)

    @property
    def _suffix(self) -> str:
        return hy.find_suffix(self.rules.special_tokens)


class Hy4Calls(Hy3Calls):
    line_end = ""

    def name(self, tool: ToolSchema) -> str:
        return literal(tool.name)
