"""Fields of Anthropic's API, and of the other APIs here, that a body of messages may not have.

Source: the create parameters of Anthropic's SDKs 2.14 (Python) and 1.14 (npm), November 2026.
"""

from types import MappingProxyType

from specdecode_engine.serve.openai.refused_fields import (
    CALLERS,
    OFF,
    TOOL,
    RefusedField,
    RefusedFields,
)

_CHOICE = "use tools and tool_choice"
_LIMIT = "use max_tokens"
_PREFILL = "end messages with one of the assistant, which the answer continues"
_TOKENS_ONLY = "it is available from /v1/chat/completions only"
_KEEPS_ALL = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}

MESSAGES: RefusedFields = MappingProxyType(
    {
        "add_generation_prompt": RefusedField(_PREFILL, (*OFF, True)),
        "add_special_tokens": RefusedField("the chat template writes the special tokens"),
        "compaction": RefusedField("the context is not compacted; send fewer messages"),
        "container": RefusedField("code is not run here; remove it"),
        "context_management": RefusedField(
            "the context is not edited; send fewer messages", (*OFF, {"edits": []}, _KEEPS_ALL)
        ),
        "continue_final_message": RefusedField(_PREFILL),
        "echo": RefusedField("use /v1/completions"),
        "function_call": RefusedField(_CHOICE),
        "functions": RefusedField(_CHOICE),
        "input": RefusedField("use messages"),
        "instructions": RefusedField("use system"),
        "logprobs": RefusedField(_TOKENS_ONLY),
        "max_completion_tokens": RefusedField(_LIMIT),
        "max_output_tokens": RefusedField(_LIMIT),
        "mcp_servers": RefusedField("servers of tools are not called; offer their tools in tools"),
        "output_format": RefusedField("use output_config.format"),
        "previous_response_id": RefusedField("nothing is stored; send the whole conversation"),
        "prompt": RefusedField("use messages"),
        "reasoning": RefusedField("use thinking and output_config.effort"),
        "reasoning_effort": RefusedField("use output_config.effort"),
        "return_token_ids": RefusedField(_TOKENS_ONLY),
        "stop": RefusedField("use stop_sequences"),
        "suffix": RefusedField("it is not supported; remove it"),
        "text": RefusedField("use output_config.format"),
        "top_logprobs": RefusedField(_TOKENS_ONLY),
    }
)
MESSAGES_TOOL: RefusedFields = MappingProxyType(
    {name: RefusedField("use input_schema") for name in (*TOOL, "parameters", "function")
     if name != "input_schema"}
    | {"allowed_callers": CALLERS}
)  # fmt: skip
"""Refused in a tool that is offered."""
OUTPUT_CONFIG: RefusedFields = MappingProxyType(
    {"task_budget": RefusedField("use max_tokens or effort")}
)
NOT_SHARED = (
    "n", "prompt_logprobs", "response_format", "return_routed_experts", "stream_options",
    "truncate_prompt_tokens", "truncation_side",
)  # fmt: skip
"""Fields of OpenAI's APIs that have another form here, or none."""
