"""DeepSeek V3.2 and V4: `<｜DSML｜function_calls>`, or `tool_calls` in V4, then calls by name.

A parameter states whether it is a string: `<｜DSML｜parameter name="a" string="true">x` and its end
tag; other values are JSON. Facts: vLLM's `deepseek_v32` and `deepseek_v4`, SGLang's `deepseekv32`,
llama.cpp's template of DeepSeek-V3.2.
"""

from specdecode_engine.serve.parsers.buffer import Markers
from specdecode_engine.serve.parsers.minimax import NAME_END, InvokeTags, MiniMaxM2Parser
from specdecode_engine.serve.parsers.parameter_values import quoted
from specdecode_engine.serve.parsers.reading import NAME_CHARS, Steps
from specdecode_engine.serve.parsers.schema_types import is_string, property_of
from specdecode_engine.serve.parsers.xml_parameters import ParameterTags

TOKEN = "｜DSML｜"
STRING = '" string="'
INVOKE, INVOKE_END = f'<{TOKEN}invoke name="', f"</{TOKEN}invoke>"
V32_TAGS = InvokeTags(f"<{TOKEN}function_calls>", f"</{TOKEN}function_calls>", INVOKE, INVOKE_END)
V4_TAGS = InvokeTags(f"<{TOKEN}tool_calls>", f"</{TOKEN}tool_calls>", INVOKE, INVOKE_END)
PARAMETER_TAGS = ParameterTags(
    f'<{TOKEN}parameter name="', NAME_END, f"</{TOKEN}parameter>", has_lines=False
)
_KEY_END = Markers(STRING, NAME_END)


class DeepSeekV32Parser(MiniMaxM2Parser):
    """A parameter that does not state whether it is a string is one if the schema demands it."""

    tags = PARAMETER_TAGS
    invoke_tags = V32_TAGS

    def read_parameters(self, name: str) -> Steps[None]:
        schema, separator = self.schema_of(name), ""
        yield from self.take_space()
        while (yield from self.skip(self.tags.begin)):
            key, end = yield from self.collect_until(_KEY_END)
            if not end:
                return
            self.add_arguments(f"{separator}{quoted(key.strip())}: ")
            separator = ", "
            is_text = is_string(property_of(schema, key.strip()))
            if end == STRING:
                is_text = (yield from self.take_run(NAME_CHARS)) == "true"
                if not (yield from self.skip(NAME_END)):
                    return
            if is_text:
                yield from self.read_string_value()
            else:
                yield from self.read_value(schema, key.strip())
            yield from self.take_space()


class DeepSeekV4Parser(DeepSeekV32Parser):
    """DeepSeek V4."""

    invoke_tags = V4_TAGS
