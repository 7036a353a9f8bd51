"""Grammars of the calls of each format, as its parser reads them."""

import json
import re
from collections.abc import Mapping

from specdecode_engine.serve.parsers import (
    cohere,
    deepseek,
    hermes,
    llama,
    mistral,
    pythonic,
    qwen_coder,
)
from specdecode_engine.serve.parsers.call_grammar import (
    COMMA,
    WRAPPED,
    CallGrammar,
    ParameterCalls,
    ToolSchema,
    UnsupportedSchema,
    check_key,
    repeated,
    shown,
)
from specdecode_engine.serve.parsers.gemma_grammar import FunctionGemmaCalls, Gemma4Calls
from specdecode_engine.serve.parsers.glm_grammar import Glm45Calls, Glm47Calls
from specdecode_engine.serve.parsers.hy_grammar import Hy3Calls, Hy4Calls
from specdecode_engine.serve.parsers.invoke_grammar import (
    DeepSeekV4Calls,
    DeepSeekV32Calls,
    MiniMaxM2Calls,
)
from specdecode_engine.serve.parsers.json_list_grammars import (
    ApertusCalls,
    GraniteCalls,
    HunyuanA13BCalls,
    InternLm2Calls,
    Phi4MiniCalls,
)
from specdecode_engine.serve.parsers.lark import literal

_IDENTIFIER = re.compile(r"\w+")
_LINE, _INDENTED = "\n", "\n    "
_DOTTED = re.compile(r"[\w.]+")


class HermesCalls(CallGrammar):
    trigger = hermes.BEGIN

    def after_trigger(self) -> str:
        end = self.rules.marker(hermes.END)
        return f'"\\n" {self.json_call("arguments")} "\\n" {end}'

    def calls(self, is_parallel: bool) -> str:
        call = self.rules.add(f"{self.rules.marker(hermes.BEGIN)} {self.after_trigger()}")
        return repeated(call, '"\\n"', is_parallel)


class LlamaJsonCalls(CallGrammar):
    trigger = llama.PYTHON_TAG
    bare = "{"

    def calls(self, is_parallel: bool) -> str:
        return repeated(self.json_call("parameters"), '"; "', is_parallel)

    def after_trigger(self) -> str:
        return self.json_call("parameters")


class MistralCalls(CallGrammar):
    trigger = mistral.TOOL_CALLS

    def after_trigger(self) -> str:
        if not self._has_names:
            calls = repeated(self.json_call("arguments"), COMMA, True)
            return f'" "? "[" {calls} "]"'
        args = self.rules.marker(mistral.ARGS)
        return self.one_of(lambda tool: f"{literal(tool.name)} {args} {self.arguments(tool)}")

    def calls(self, is_parallel: bool) -> str:
        begin = self.rules.marker(mistral.TOOL_CALLS)
        if self._has_names:
            return repeated(self.rules.add(f"{begin} {self.after_trigger()}"), "", is_parallel)
        calls = repeated(self.json_call("arguments"), COMMA, is_parallel)
        return f'{begin} " "? "[" {calls} "]"'

    @property
    def _has_names(self) -> bool:
        """Whether the vocabulary is that of tokenizer v11 or later."""
        return self.rules.is_special(mistral.ARGS)


class DeepSeekV31Calls(CallGrammar):
    trigger: str = deepseek.CALLS_BEGIN
    tokens = deepseek.TOKENS
    separator = ""

    def after_trigger(self) -> str:
        return self._all_calls(True)

    def calls(self, is_parallel: bool) -> str:
        return f"{self.rules.marker(self.trigger)} {self._all_calls(is_parallel)}"

    def _all_calls(self, is_parallel: bool) -> str:
        rules, tokens = self.rules, self.tokens
        begin, end = rules.marker(tokens.begin), rules.marker(tokens.end)
        call = rules.add(f"{begin} {self.one_of(self.body)} {end}")
        calls = repeated(call, self.separator, is_parallel)
        return f"{calls} {rules.marker(tokens.calls_end)}"

    def body(self, tool: ToolSchema) -> str:
        separator = self.rules.marker(deepseek.SEPARATOR)
        return f"{literal(tool.name)} {separator} {self.arguments(tool)}"


class KimiK2Calls(DeepSeekV31Calls):
    trigger = deepseek.KIMI_TOKENS.calls_begin
    tokens = deepseek.KIMI_TOKENS

    def body(self, tool: ToolSchema) -> str:
        begin = literal(f"{deepseek.KIMI_FUNCTIONS}{tool.name}:")
        separator = self.rules.marker(self.tokens.separator)
        return f"{begin} /[0-9]{{1,3}}/ {separator} {self.arguments(tool)}"


class DeepSeekV3Calls(DeepSeekV31Calls):
    separator = '"\\n"'

    def body(self, tool: ToolSchema) -> str:
        separator = self.rules.marker(deepseek.SEPARATOR)
        begin = literal(f"{tool.name}\n```json\n")
        return f'"function" {separator} {begin} {self.arguments(tool)} "\\n```"'


class PythonicCalls(ParameterCalls):
    trigger: str = pythonic.PYTHON_START
    end = pythonic.PYTHON_END
    bare = "["

    def calls(self, is_parallel: bool) -> str:
        return f'"[" {repeated(self.one_of(self.call), COMMA, is_parallel)} "]"'

    def after_trigger(self) -> str:
        return f"{PythonicCalls.calls(self, True)} {self.rules.marker(self.end)}"

    def call(self, tool: ToolSchema) -> str:
        """Return what matches a call with keyword arguments in the order of the properties."""
        if not _DOTTED.fullmatch(tool.name):
            raise UnsupportedSchema(f"{tool.place}: {tool.name} is not a name in Python; rename it")
        pairs: list[tuple[str, bool]] = []
        for key, schema, is_required in self.parameters(tool):
            if not _IDENTIFIER.fullmatch(key):
                raise UnsupportedSchema(
                    f"{tool.place}: {shown(key)} is not a name in Python; rename it"
                )
            pair = self.rules.add(f"{literal(key + '=')} {self.value(tool, key, schema)}")
            pairs.append((pair, is_required))
        return f'{literal(tool.name + "(")} {self.separated(pairs, COMMA)} ")"'


class Lfm2Calls(PythonicCalls):
    trigger = pythonic.LFM2_START
    end = pythonic.LFM2_END
    bare = ""

    def calls(self, is_parallel: bool) -> str:
        start, end = self.rules.marker(self.trigger), self.rules.marker(self.end)
        return f"{start} {super().calls(is_parallel)} {end}"


class Olmo3Calls(PythonicCalls):
    trigger = pythonic.OLMO3_START
    end = pythonic.OLMO3_END
    bare = ""

    def calls(self, is_parallel: bool) -> str:
        return f"{self.rules.marker(self.trigger)} {self._lines(is_parallel)}"

    def after_trigger(self) -> str:
        return self._lines(True)

    def _lines(self, is_parallel: bool) -> str:
        calls = repeated(self.one_of(self.call), '"\\n"', is_parallel)
        return f"{calls} {self.rules.marker(self.end)}"


class QwenCoderCalls(ParameterCalls):
    trigger: str = qwen_coder.FUNCTION
    wrapper = qwen_coder.BEGIN
    end = qwen_coder.END
    line_end = "\n"
    """After a key and before the end of its value."""

    def after_trigger(self) -> str:
        end = literal(f"{qwen_coder.FUNCTION_END}\n")
        return f"{self.one_of(self._call)} {end} {self.rules.marker(self.end)}"

    def calls(self, is_parallel: bool) -> str:
        begin = f"{self.rules.marker(self.wrapper)} {literal(WRAPPED + self.trigger)}"
        call = self.rules.add(f"{begin} {self.after_trigger()}")
        return repeated(call, '"\\n"', is_parallel)

    def _call(self, tool: ToolSchema) -> str:
        arguments = [literal(f"{tool.name}>\n")]
        for key, schema, is_required in self.parameters(tool):
            check_key(tool, key, ">")
            begin = literal(f"{qwen_coder.PARAMETER}{key}>{self.line_end}")
            value = self.value_to(
                qwen_coder.PARAMETER_END, literal(self.line_end), tool, key, schema
            )
            argument = self.rules.add(f'{begin} {value} "\\n"')
            arguments.append(argument if is_required else f"{argument}?")
        return " ".join(arguments)


class SeedOssCalls(QwenCoderCalls):
    wrapper = qwen_coder.SEED_BEGIN
    end = qwen_coder.SEED_END
    line_end = ""


class CohereCommand3Calls(CallGrammar):
    trigger = cohere.ACTION
    content_markers = cohere.CohereCommand3Parser.content_markers

    def calls(self, is_parallel: bool) -> str:
        calls = repeated(self.one_of(self._call), literal("," + _INDENTED), is_parallel)
        begin, end = self.rules.marker(cohere.ACTION), self.rules.marker(cohere.ACTION_END)
        return f"{begin} {literal('[' + _INDENTED)} {calls} {literal(_LINE + ']')} {end}"

    def _call(self, tool: ToolSchema) -> str:
        name = literal(f'", "{cohere.NAME_KEY}": {json.dumps(tool.name)}, "parameters": ')
        begin = literal('{"tool_call_id": "')
        return f'{begin} /[0-9]{{1,3}}/ {name} {self.arguments(tool)} "}}"'


class CohereCommand4Calls(CohereCommand3Calls):
    content_markers = cohere.CohereCommand4Parser.content_markers


CALL_GRAMMARS: Mapping[str, type[CallGrammar]] = {
    "apertus": ApertusCalls,
    "cohere_command3": CohereCommand3Calls,
    "cohere_command4": CohereCommand4Calls,
    "deepseek_v3": DeepSeekV3Calls,
    "deepseek_v31": DeepSeekV31Calls,
    "deepseek_v32": DeepSeekV32Calls,
    "deepseek_v4": DeepSeekV4Calls,
    "functiongemma": FunctionGemmaCalls,
    "gemma4": Gemma4Calls,
    "glm45": Glm45Calls,
    "glm47": Glm47Calls,
    "granite": GraniteCalls,
    "hermes": HermesCalls,
    "hunyuan_a13b": HunyuanA13BCalls,
    "hy_v3": Hy3Calls,
    "hy_v4": Hy4Calls,
    "internlm": InternLm2Calls,
    "kimi_k2": KimiK2Calls,
    "lfm2": Lfm2Calls,
    "llama3_json": LlamaJsonCalls,
    "minimax_m2": MiniMaxM2Calls,
    "mistral": MistralCalls,
    "olmo3": Olmo3Calls,
    "phi4_mini_json": Phi4MiniCalls,
    "pythonic": PythonicCalls,
    "qwen3_coder": QwenCoderCalls,
    "seed_oss": SeedOssCalls,
}
