"""Grammars of calls by `invoke`: MiniMax M2, DeepSeek V3.2 and V4."""

from collections.abc import Mapping
from typing import Any

from specdecode_engine.serve.parsers import dsml, minimax
from specdecode_engine.serve.parsers.call_grammar import (
    ParameterCalls,
    ToolSchema,
    check_key,
    repeated,
)
from specdecode_engine.serve.parsers.schema_types import is_string


class MiniMaxM2Calls(ParameterCalls):
    tags = minimax.TAGS
    parameter_tags = minimax.PARAMETER_TAGS

    @property
    def triggers(self) -> tuple[str, ...]:
        return (self.tags.begin,)

    def calls(self, is_parallel: bool) -> str:
        return f"{self.rules.marker(self.tags.begin)} {self._block(is_parallel)}"

    def after_trigger(self) -> str:
        return self._block(True)

    def _block(self, is_parallel: bool) -> str:
        calls = repeated(self.one_of(self._call), "", is_parallel)
        return f'"\\n" {calls} {self.rules.marker(self.tags.end)}'

    def _call(self, tool: ToolSchema) -> str:
        rules, tags = self.rules, self.parameter_tags
        parts = [rules.marker(f"{self.tags.invoke}{tool.name}{minimax.NAME_END}\n")]
        for key, schema, is_required in self.parameters(tool):
            check_key(tool, key, '"')
            begin = rules.marker(f"{tags.begin}{key}{self.key_end(schema)}")
            part = rules.add(f'{begin} {self.value_to(tags.end, "", tool, key, schema)} "\\n"')
            parts.append(part if is_required else f"{part}?")
        return " ".join([*parts, rules.marker(f"{self.tags.invoke_end}\n")])

    def key_end(self, schema: Mapping[str, Any]) -> str:
        """Return what follows a key whose value has a schema."""
        return self.parameter_tags.key_end


class DeepSeekV32Calls(MiniMaxM2Calls):
    tags = dsml.V32_TAGS
    parameter_tags = dsml.PARAMETER_TAGS

    def key_end(self, schema: Mapping[str, Any]) -> str:
        is_text = "true" if is_string(schema) else "false"
        return f"{dsml.STRING}{is_text}{minimax.NAME_END}"


class DeepSeekV4Calls(DeepSeekV32Calls):
    tags = dsml.V4_TAGS
