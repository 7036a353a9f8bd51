"""The formats of tool calls by name, and their choice by the chat template."""

from collections.abc import Mapping
from types import MappingProxyType

from specdecode_engine.serve.parsers import (
    deepseek,
    glm,
    harmony,
    hermes,
    llama,
    mistral,
    pythonic,
    qwen_coder,
)
from specdecode_engine.serve.parsers.message import MessageFormat

_DEEPSEEK = frozenset(
    {
        deepseek.CALLS_BEGIN,
        deepseek.CALLS_END,
        deepseek.CALL_BEGIN,
        deepseek.CALL_END,
        deepseek.SEPARATOR,
    }
)
_HARMONY = frozenset(
    {
        harmony.START,
        harmony.CHANNEL,
        harmony.CONSTRAIN,
        harmony.MESSAGE,
        harmony.MESSAGE_END,
        harmony.CALL,
        harmony.RETURN,
    }
)
_GLM = frozenset({glm.BEGIN, glm.END, glm.KEY, glm.KEY_END, glm.VALUE, glm.VALUE_END})
_MISTRAL = frozenset({mistral.TOOL_CALLS, mistral.ARGS, mistral.CALL_ID})
_QWEN_CODER = frozenset({qwen_coder.BEGIN, qwen_coder.END})
_PYTHONIC = frozenset({pythonic.PYTHON_START, pythonic.PYTHON_END})

TOOL_FORMATS: Mapping[str, MessageFormat] = MappingProxyType(
    {
        each.name: each
        for each in (
            MessageFormat("deepseek_v3", _DEEPSEEK, deepseek.DeepSeekV3Parser),
            MessageFormat("deepseek_v31", _DEEPSEEK, deepseek.DeepSeekV31Parser),
            MessageFormat("glm45", _GLM, glm.GlmParser),
            MessageFormat("hermes", frozenset({hermes.BEGIN, hermes.END}), hermes.HermesParser),
            MessageFormat("llama3_json", frozenset({llama.PYTHON_TAG}), llama.LlamaJsonParser),
            MessageFormat("mistral", _MISTRAL, mistral.MistralParser),
            MessageFormat("openai", _HARMONY, harmony.HarmonyParser),
            MessageFormat("pythonic", _PYTHONIC, pythonic.PythonicParser),
            MessageFormat("qwen3_coder", _QWEN_CODER, qwen_coder.QwenCoderParser),
        )
    }
)
"""By the names of `specdecode_api.parsers.ToolFormat`."""

# Texts that a template of the family contains, all of them, most specific family first.
_EVIDENCE: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("openai", ("<|channel|>", "<|message|>")),
    ("glm45", ("<tool_call>", "<arg_key>")),
    ("deepseek_v3", ("<｜tool▁call▁begin｜>", "```json")),
    ("deepseek_v31", ("<｜tool▁call▁begin｜>",)),
    ("mistral", ("[TOOL_CALLS]",)),
    ("qwen3_coder", ("<tool_call>", "<function=", "<parameter=")),
    ("hermes", ("<tool_call>", "arguments")),
    ("pythonic", ("[func_name1(",)),
    ("llama3_json", ("<|start_header_id|>", '"parameters"')),
    ("llama3_json", ("<|python_tag|>",)),
)
# Calls in XML, which only one format here reads.
_XML, _XML_FORMAT = "<function=", "qwen3_coder"


def detect_tool_format(template: str) -> str | None:
    """Return the name of the format in which a model with this template writes tool calls."""
    found = (name for name, texts in _EVIDENCE if all(text in template for text in texts))
    name = next(found, None)
    return None if _XML in template and name != _XML_FORMAT else name
