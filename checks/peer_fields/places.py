"""Where vLLM, SGLang and the SDKs of OpenAI and Anthropic declare the fields of requests."""

from collections.abc import Mapping

from checks.peer_fields.request_models import Declaration, Declarations
from checks.peer_fields.table import Source

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"

_VLLM = "vllm/entrypoints"
_SHARED = f"{_VLLM}/generate/base/protocol.py"
_SGLANG = "sglang/srt/entrypoints/openai/protocol.py"
_SGLANG_MESSAGES = "sglang/srt/entrypoints/anthropic/protocol.py"
_CREATE = "create"

FILES: Mapping[Source, tuple[str, ...]] = {
    Source.VLLM: (
        _SHARED,
        f"{_VLLM}/serve/engine/protocol.py",
        f"{_VLLM}/openai/completion/protocol.py",
        f"{_VLLM}/openai/chat_completion/protocol.py",
        f"{_VLLM}/openai/responses/protocol.py",
        f"{_VLLM}/anthropic/protocol.py",
    ),
    Source.SGLANG: (_SGLANG, _SGLANG_MESSAGES),
    Source.OPENAI: ("openai/resources/", "openai/types/"),
    Source.ANTHROPIC: ("anthropic/resources/", "anthropic/types/"),
}
"""Beginnings of the paths of modules that are read from each wheel."""


def _all(file: str, *names: str) -> tuple[Declaration, ...]:
    return tuple(Declaration(file, name) for name in names)


_OPENAI = "openai/types"
_ANTHROPIC = "anthropic/types"
_BETA = f"{_ANTHROPIC}/beta"
_KINDS_OF_THINKING = ("Enabled", "Disabled", "Adaptive", "BetweenTools")


def _thinking(folder: str, prefix: str) -> tuple[Declaration, ...]:
    found: list[Declaration] = []
    for kind in _KINDS_OF_THINKING:
        words = {"BetweenTools": "between_tools"}.get(kind, kind.lower())
        file = f"{folder}/{prefix.lower()}{'_' * bool(prefix)}thinking_config_{words}_param.py"
        found += _all(file, f"{prefix}ThinkingConfig{kind}Param")
    return tuple(found)


DECLARATIONS: Mapping[Source, Declarations] = {
    Source.VLLM: {
        COMPLETIONS: {
            "": _all(f"{_VLLM}/openai/completion/protocol.py", "CompletionRequest"),
            "stream_options": _all(_SHARED, "StreamOptions"),
            "response_format": _all(_SHARED, "ResponseFormat"),
        },
        CHAT: {
            "": _all(f"{_VLLM}/openai/chat_completion/protocol.py", "ChatCompletionRequest"),
            "stream_options": _all(_SHARED, "StreamOptions"),
            "response_format": _all(_SHARED, "ResponseFormat"),
            "response_format.json_schema": _all(_SHARED, "JsonSchemaResponseFormat"),
            "tools[]": _all(
                f"{_VLLM}/openai/chat_completion/protocol.py", "ChatCompletionToolsParam"
            ),
            "tools[].function": _all(_SHARED, "FunctionDefinition"),
        },
        RESPONSES: {"": _all(f"{_VLLM}/openai/responses/protocol.py", "ResponsesRequest")},
        MESSAGES: {
            "": _all(f"{_VLLM}/anthropic/protocol.py", "AnthropicMessagesRequest"),
            "output_config": _all(f"{_VLLM}/anthropic/protocol.py", "AnthropicOutputConfig"),
            "thinking": _all(
                f"{_VLLM}/anthropic/protocol.py",
                "AnthropicThinkingConfigEnabled",
                "AnthropicThinkingConfigDisabled",
                "AnthropicThinkingConfigAdaptive",
            ),
            "tools[]": _all(f"{_VLLM}/anthropic/protocol.py", "AnthropicTool"),
        },
    },
    Source.SGLANG: {
        COMPLETIONS: {
            "": _all(_SGLANG, "CompletionRequest"),
            "stream_options": _all(_SGLANG, "StreamOptions"),
            "response_format": _all(_SGLANG, "ResponseFormat"),
        },
        CHAT: {
            "": _all(_SGLANG, "ChatCompletionRequest"),
            "stream_options": _all(_SGLANG, "StreamOptions"),
            "response_format": _all(_SGLANG, "ResponseFormat"),
            "response_format.json_schema": _all(_SGLANG, "JsonSchemaResponseFormat"),
            "tools[]": _all(_SGLANG, "Tool"),
            "tools[].function": _all(_SGLANG, "Function"),
        },
        RESPONSES: {
            "": _all(_SGLANG, "ResponsesRequest"),
            "reasoning": _all(_SGLANG, "ResponseReasoningParam"),
            "tools[]": _all(_SGLANG, "ResponseTool"),
        },
        MESSAGES: {
            "": _all(_SGLANG_MESSAGES, "AnthropicMessagesRequest"),
            "output_config": _all(_SGLANG_MESSAGES, "AnthropicOutputConfig"),
            "thinking": _all(_SGLANG_MESSAGES, "AnthropicThinkingParam"),
            "tools[]": _all(_SGLANG_MESSAGES, "AnthropicCustomTool"),
        },
    },
    Source.OPENAI: {
        COMPLETIONS: {
            "": (Declaration("openai/resources/completions.py", "Completions", _CREATE),)
        },
        CHAT: {
            "": (
                Declaration(
                    "openai/resources/chat/completions/completions.py", "Completions", _CREATE
                ),
            ),
            "stream_options": _all(
                f"{_OPENAI}/chat/chat_completion_stream_options_param.py",
                "ChatCompletionStreamOptionsParam",
            ),
            "response_format": _all(
                f"{_OPENAI}/shared_params/response_format_json_schema.py",
                "ResponseFormatJSONSchema",
            ),
            "response_format.json_schema": _all(
                f"{_OPENAI}/shared_params/response_format_json_schema.py", "JSONSchema"
            ),
            "tools[]": _all(
                f"{_OPENAI}/chat/chat_completion_function_tool_param.py",
                "ChatCompletionFunctionToolParam",
            ),
            "tools[].function": _all(
                f"{_OPENAI}/shared_params/function_definition.py", "FunctionDefinition"
            ),
        },
        RESPONSES: {
            "": (Declaration("openai/resources/responses/responses.py", "Responses", _CREATE),),
            "reasoning": _all(f"{_OPENAI}/shared_params/reasoning.py", "Reasoning"),
            "stream_options": _all(
                f"{_OPENAI}/responses/response_create_params.py", "StreamOptions"
            ),
            "text": _all(
                f"{_OPENAI}/responses/response_text_config_param.py", "ResponseTextConfigParam"
            ),
            "text.format": _all(
                f"{_OPENAI}/responses/response_format_text_json_schema_config_param.py",
                "ResponseFormatTextJSONSchemaConfigParam",
            ),
            "tools[]": _all(f"{_OPENAI}/responses/function_tool_param.py", "FunctionToolParam"),
        },
    },
    Source.ANTHROPIC: {
        MESSAGES: {
            "": (
                Declaration("anthropic/resources/messages/messages.py", "Messages", _CREATE),
                Declaration("anthropic/resources/beta/messages/messages.py", "Messages", _CREATE),
            ),
            "output_config": (
                *_all(f"{_ANTHROPIC}/output_config_param.py", "OutputConfigParam"),
                *_all(f"{_BETA}/beta_output_config_param.py", "BetaOutputConfigParam"),
            ),
            "thinking": (*_thinking(_ANTHROPIC, ""), *_thinking(_BETA, "Beta")),
            "tools[]": (
                *_all(f"{_ANTHROPIC}/tool_param.py", "ToolParam"),
                *_all(f"{_BETA}/beta_tool_param.py", "BetaToolParam"),
            ),
        },
    },
}
