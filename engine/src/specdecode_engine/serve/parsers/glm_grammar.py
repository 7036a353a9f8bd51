"""Grammars of the calls of GLM-4.5 and GLM-4.7."""

from specdecode_engine.serve.parsers import glm
from specdecode_engine.serve.parsers.call_grammar import ParameterCalls, ToolSchema, repeated
from specdecode_engine.serve.parsers.lark import literal


class Glm45Calls(ParameterCalls):
    trigger = glm.TAGS.begin
    line_end = "\n"

    @property
    def tags(self) -> glm.CallTags:
        return glm.TAGS

    def after_trigger(self) -> str:
        return f"{self.one_of(self.call)} {self.rules.marker(self.tags.end)}"

    def calls(self, is_parallel: bool) -> str:
        call = self.rules.add(f"{self.rules.marker(self.tags.begin)} {self.after_trigger()}")
        return repeated(call, literal(self.line_end), is_parallel)

    def call(self, tool: ToolSchema) -> str:
        """Return what matches a call between its tags."""
        parts = [self.name(tool)]
        rules, tags, line_end = self.rules, self.tags, literal(self.line_end)
        for key, schema, is_required in self.parameters(tool):
            begin = f"{rules.marker(tags.key)} {literal(key)} {rules.marker(tags.key_end)}"
            value = self.value_to(tags.value_end, "", tool, key, schema)
            part = rules.add(f"{begin} {line_end} {rules.marker(tags.value)} {value} {line_end}")
            parts.append(part if is_required else f"{part}?")
        return " ".join(parts)

    def name(self, tool: ToolSchema) -> str:
        """Return what matches a name and what follows it."""
        return literal(tool.name + self.line_end)


class Glm47Calls(Glm45Calls):
    line_end = ""
