"""The formats of tool calls by name, and their choice by the chat template."""

from collections.abc import Mapping
from types import MappingProxyType

from specdecode_engine.serve.parsers import (
    cohere,
    deepseek,
    dsml,
    gemma,
    glm,
    harmony,
    hermes,
    hy,
    json_lists,
    llama,
    minimax,
    mistral,
    pythonic,
    qwen_coder,
)
from specdecode_engine.serve.parsers.message import MessageFormat

_APERTUS = frozenset({json_lists.APERTUS, json_lists.APERTUS_END})
_COHERE = frozenset({cohere.ACTION, cohere.ACTION_END})
_COHERE_RESPONSE = _COHERE | {cohere.RESPONSE, cohere.RESPONSE_END}
_COHERE_TEXT = _COHERE | {cohere.TEXT, cohere.TEXT_END}
_DEEPSEEK, _KIMI = frozenset(deepseek.TOKENS), frozenset(deepseek.KIMI_TOKENS)
_DEEPSEEK_CALLS = deepseek.CALLS_BEGIN, deepseek.CALL_BEGIN
_KIMI_CALLS = deepseek.KIMI_TOKENS.calls_begin, deepseek.KIMI_TOKENS.begin
_DSML = frozenset({dsml.TOKEN})
_GEMMA = frozenset(gemma.TOKENS)
_INTERNLM = frozenset({json_lists.ACTION, json_lists.PLUGIN, json_lists.ACTION_END})
_GRANITE = frozenset({json_lists.GRANITE_TOKEN})
_HUNYUAN_A13B = frozenset({json_lists.CALLS, json_lists.CALLS_END})
_PHI4_MINI = frozenset({json_lists.PHI_TOKEN, json_lists.PHI_END})
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
_GLM = frozenset(glm.TAGS)
_MISTRAL = frozenset({mistral.TOOL_CALLS, mistral.ARGS, mistral.CALL_ID})
_LFM2 = frozenset({pythonic.LFM2_START, pythonic.LFM2_END})
_MINIMAX = frozenset({minimax.TAGS.begin, minimax.TAGS.end})
_OLMO3 = frozenset({pythonic.OLMO3_START, pythonic.OLMO3_END})
_PYTHONIC = frozenset({pythonic.PYTHON_START, pythonic.PYTHON_END})
_QWEN_CODER = frozenset({qwen_coder.BEGIN, qwen_coder.END})
_SEED = frozenset({qwen_coder.SEED_BEGIN, qwen_coder.SEED_END})

TOOL_FORMATS: Mapping[str, MessageFormat] = MappingProxyType(
    {
        each.name: each
        for each in (
            MessageFormat(
                "apertus", _APERTUS, json_lists.ApertusParser, call_markers=(json_lists.APERTUS,)
            ),
            MessageFormat(
                "cohere_command3",
                _COHERE_RESPONSE,
                cohere.CohereCommand3Parser,
                True,
                call_markers=(cohere.ACTION,),
            ),
            MessageFormat(
                "cohere_command4",
                _COHERE_TEXT,
                cohere.CohereCommand4Parser,
                True,
                call_markers=(cohere.ACTION,),
            ),
            MessageFormat(
                "deepseek_v3", _DEEPSEEK, deepseek.DeepSeekV3Parser, call_markers=_DEEPSEEK_CALLS
            ),
            MessageFormat(
                "deepseek_v31", _DEEPSEEK, deepseek.DeepSeekV31Parser, call_markers=_DEEPSEEK_CALLS
            ),
            MessageFormat(
                "deepseek_v32",
                _DSML,
                dsml.DeepSeekV32Parser,
                call_markers=(dsml.V32_TAGS.begin,),
            ),
            MessageFormat(
                "deepseek_v4", _DSML, dsml.DeepSeekV4Parser, call_markers=(dsml.V4_TAGS.begin,)
            ),
            MessageFormat(
                "functiongemma",
                frozenset(gemma.FUNCTION_TOKENS),
                gemma.FunctionGemmaParser,
                call_markers=(gemma.FUNCTION_TOKENS.begin,),
            ),
            MessageFormat("gemma4", _GEMMA, gemma.Gemma4Parser, call_markers=(gemma.TOKENS.begin,)),
            MessageFormat("glm45", _GLM, glm.GlmParser, call_markers=(glm.TAGS.begin,)),
            MessageFormat("glm47", _GLM, glm.GlmParser, call_markers=(glm.TAGS.begin,)),
            MessageFormat(
                "granite",
                _GRANITE,
                json_lists.GraniteParser,
                call_markers=json_lists.GraniteParser.begins,
            ),
            MessageFormat(
                "hermes",
                frozenset({hermes.BEGIN, hermes.END}),
                hermes.HermesParser,
                call_markers=(hermes.BEGIN,),
            ),
            # A call within a thought is none, so that no marker begins calls anywhere.
            MessageFormat("hunyuan_a13b", _HUNYUAN_A13B, json_lists.HunyuanA13BParser),
            MessageFormat("hy_v3", hy.tool_tokens(""), hy.HyParser, call_markers=(hy.CALLS,)),
            MessageFormat("hy_v4", hy.tool_tokens(""), hy.HyParser, call_markers=(hy.CALLS,)),
            MessageFormat(
                "internlm",
                _INTERNLM,
                json_lists.InternLm2Parser,
                call_markers=(json_lists.ACTION,),
            ),
            MessageFormat("kimi_k2", _KIMI, deepseek.KimiK2Parser, call_markers=_KIMI_CALLS),
            MessageFormat("lfm2", _LFM2, pythonic.Lfm2Parser, call_markers=(pythonic.LFM2_START,)),
            MessageFormat(
                "llama3_json",
                frozenset({llama.PYTHON_TAG}),
                llama.LlamaJsonParser,
                call_markers=(llama.PYTHON_TAG,),
            ),
            MessageFormat(
                "minimax_m2", _MINIMAX, minimax.MiniMaxM2Parser, call_markers=(minimax.TAGS.begin,)
            ),
            MessageFormat(
                "mistral", _MISTRAL, mistral.MistralParser, call_markers=(mistral.TOOL_CALLS,)
            ),
            MessageFormat(
                "olmo3", _OLMO3, pythonic.Olmo3Parser, call_markers=(pythonic.OLMO3_START,)
            ),
            MessageFormat("openai", _HARMONY, harmony.HarmonyParser, True),
            MessageFormat(
                "phi4_mini_json",
                _PHI4_MINI,
                json_lists.Phi4MiniParser,
                call_markers=json_lists.Phi4MiniParser.begins,
            ),
            MessageFormat(
                "pythonic",
                _PYTHONIC,
                pythonic.PythonicParser,
                call_markers=(pythonic.PYTHON_START,),
            ),
            MessageFormat(
                "qwen3_coder",
                _QWEN_CODER,
                qwen_coder.QwenCoderParser,
                call_markers=(qwen_coder.BEGIN, qwen_coder.FUNCTION),
            ),
            MessageFormat(
                "seed_oss",
                _SEED,
                qwen_coder.SeedOssParser,
                call_markers=(qwen_coder.SEED_BEGIN, qwen_coder.FUNCTION),
            ),
        )
    }
)
"""By the names of `specdecode_api.parsers.ToolFormat`."""

# Texts that a template of the family contains, all of them, most specific family first.
_EVIDENCE: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("openai", ("<|channel|>", "<|message|>")),
    ("gemma4", ("<|tool_call>call:",)),
    ("functiongemma", ("<start_function_call>",)),
    ("internlm", ("<|plugin|>",)),
    ("deepseek_v32", (dsml.TOKEN, "function_calls>")),
    ("deepseek_v4", (dsml.TOKEN, "tool_calls>")),
    ("apertus", ("<|tools_prefix|>",)),
    ("phi4_mini_json", ("<|tool|>", "<|/tool|>")),
    ("granite", ("<|start_of_role|>", "<|tool_call|>")),
    ("granite", ("<|start_of_role|>", "<tool_call> followed by a JSON list")),
    ("hy_v3", ("<tool_calls", "<tool_sep", "<arg_key")),
    ("hy_v4", ("<tool_calls", "<arg_key")),
    ("hunyuan_a13b", ("<tool_calls>", "</tool_calls>")),
    ("cohere_command4", ("<|START_ACTION|>", "<|START_TEXT|>")),
    ("cohere_command3", ("<|START_ACTION|>",)),
    ("lfm2", ("<|tool_call_start|>",)),
    ("lfm2", ("<|tool_list_start|>",)),
    ("kimi_k2", ("<|tool_call_argument_begin|>",)),
    ("minimax_m2", ("<minimax:tool_call>",)),
    ("seed_oss", ("<seed:tool_call>", "<function=", "<parameter=")),
    ("olmo3", ("<function_calls>",)),
    ("glm47", ("<tool_call>", "</arg_key><arg_value>")),
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
# Calls in XML, which only these formats read.
_XML, _XML_FORMATS = "<function=", ("qwen3_coder", "seed_oss")


def detect_tool_format(template: str) -> str | None:
    """Return the name of the format in which a model with this template writes tool calls."""
    found = (name for name, texts in _EVIDENCE if all(text in template for text in texts))
    name = next(found, None)
    return None if _XML in template and name not in _XML_FORMATS else name
