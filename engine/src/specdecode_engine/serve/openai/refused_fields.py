"""Fields of OpenAI, vLLM, SGLang, llama.cpp and Ollama that are not available here.

A field by which one of them constrains or changes an answer is honoured, or refused by name unless
its value changes nothing. Any other unknown field is ignored: it names, bills or routes a call,
matters only with a field of these tables, or clients send it without being asked to.

Sources: the request types of vLLM 0.33, SGLang 0.5.23, llama.cpp's server and Ollama, and OpenAI's
reference, as of November 2026.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from specdecode_engine.serve.errors import field_error

OFF: tuple[object, ...] = (None, False, 0, "", [], {})


@dataclass(frozen=True, slots=True)
class RefusedField:
    """Why a field is refused and what to do instead, unless it has one of the values `unless`."""

    remedy: str
    unless: tuple[object, ...] = OFF


RefusedFields = Mapping[str, RefusedField]

_PROMPT_IDS = "use prompt of /v1/completions, which may be token ids"
_TOKEN_IDS = "use return_token_ids of /v1/completions and /v1/chat/completions"
_NO_CODE = "code of clients is not run; use logit_bias or a grammar"
_ONE_TEMPLATE = "only the template of the checkpoint is used; remove it"
_TEXT_ONLY = "only text is read; remove it"
_NOT_SEPARATED = "prefill and decode are not separated; remove it"
_BUDGET = "use max_tokens or reasoning_effort"
_SAMPLER = "use temperature, top_p, top_k or min_p"
_SAMPLED_LOGPROBS = "logprobs are those of the model's logits; use logprobs"
_NO_WATERMARK = "answers have no watermark; remove it"
_WHOLE_CONVERSATION = "nothing is stored; send the whole conversation"
_EXPERTS_WHOLE = "the array begins with the first token of the prompt; remove it"

_CHANGING: Mapping[str, str] = {
    "audio": "only text is generated; remove it",
    "chat_template": _ONE_TEMPLATE,
    "context": _WHOLE_CONVERSATION,
    "custom_logit_processor": _NO_CODE,
    "documents": "documents are not supported; write them into messages",
    "dry_multiplier": "use frequency_penalty, presence_penalty or repetition_penalty",
    "dynatemp_range": "use temperature",
    "ec_transfer_params": _NOT_SEPARATED,
    "extra_key": "use cache_salt",
    "format": "use response_format, or text.format of /v1/responses",
    "grammar_lazy": "a grammar holds from the first token of the answer; remove it",
    "grammar_triggers": "a grammar holds from the first token of the answer; remove it",
    "guided_whitespace_pattern": "white space is that of the grammar; write it into a grammar",
    "image_data": _TEXT_ONLY,
    "images": _TEXT_ONLY,
    "input_embeds": "embeddings are not supported; use prompt",
    "input_ids": _PROMPT_IDS,
    "kv_transfer_params": _NOT_SEPARATED,
    "logit_processors": _NO_CODE,
    "logits_processors": _NO_CODE,
    "logprob_token_ids": "use logprobs",
    "lora": "name the adapter in model",
    "max_new_tokens": "use max_tokens",
    "media_io_kwargs": _TEXT_ONLY,
    "min_keep": _SAMPLER,
    "min_new_tokens": "use min_tokens",
    "mirostat": _SAMPLER,
    "mm_processor_kwargs": _TEXT_ONLY,
    "moderation": "nothing is moderated; remove it",
    "n_indent": "use a grammar",
    "n_probs": "use logprobs",
    "post_sampling_probs": "logprobs are those of the model's logits; remove it",
    "prompt_embeds": "embeddings are not supported; use prompt",
    "repetition_detection": "use repetition_penalty or frequency_penalty",
    "response_fields": "the whole response is returned; remove it",
    "return_cached_tokens_details": "start the engine with --enable-prompt-tokens-details",
    "return_flat_raw_output_top_logprobs": "use logprobs",
    "return_hidden_states": "hidden states are not returned; remove it",
    "return_input_ids_in_sglext": _TOKEN_IDS,
    "return_meta_info": "usage has what is known of a call; remove it",
    "return_output_ids_in_sglext": _TOKEN_IDS,
    "return_prompt_text": "use echo of /v1/completions",
    "return_prompt_token_ids": _TOKEN_IDS,
    "return_sampling_mask": _SAMPLED_LOGPROBS,
    "return_spec_tokens_details": "usage.specdecode has them in every answer; remove it",
    "return_tokens": _TOKEN_IDS,
    "return_tokens_as_token_ids": _TOKEN_IDS,
    "return_weight_versions": "an engine keeps the weights that it started with; remove it",
    "routed_experts_prompt_start": _EXPERTS_WHOLE,
    "routed_experts_start_len": _EXPERTS_WHOLE,
    "samplers": "the order of samplers is fixed; remove it",
    "sampling_logprobs_mode": _SAMPLED_LOGPROBS,
    "sampling_params": "send its fields in the body itself",
    "session_params": "sessions are not supported; send the whole conversation",
    "stop_regex": "use stop, or a grammar",
    "stop_sequences": "use stop",
    "structural_tag": "use structured_outputs, or tools with strict",
    "task": "write it into messages",
    "template": _ONE_TEMPLATE,
    "thinking_budget_tokens": _BUDGET,
    "thinking_token_budget": _BUDGET,
    "thread": f"threads are not supported: {_WHOLE_CONVERSATION}",
    "use_beam_search": "beam search is not supported; use n",
    "vllm_xargs": "extensions of vLLM are not supported; remove it",
    "watermark": _NO_WATERMARK,
    "watermarking": _NO_WATERMARK,
    "web_search_options": "the engine does not search; offer a tool",
    "xtc_probability": _SAMPLER,
}
_CHANGING_UNLESS: RefusedFields = {
    "best_of": RefusedField("every generated answer is returned; use n", (None, 1)),
    "modalities": RefusedField('only ["text"] is generated', (None, ["text"])),
    "n_cmpl": RefusedField("use n", (None, 1)),
    "n_predict": RefusedField("use max_tokens", (None, -1)),
    "num_predict": RefusedField("use max_tokens", (None, -1)),
    "parse_tool_calls": RefusedField("calls are parsed if tools are sent; remove it", (None, True)),
    "reasoning_budget": RefusedField(_BUDGET, (None, -1)),
    "reasoning_format": RefusedField(
        "reasoning is in a field of its own; remove it", (None, "auto", "deepseek")
    ),
    "repeat_penalty": RefusedField("use repetition_penalty", (None, 1)),
    "separate_reasoning": RefusedField(
        "reasoning is in a field of its own; remove it", (None, True)
    ),
    "t_max_predict_ms": RefusedField("use max_tokens", (None, 0, -1)),
    "tfs_z": RefusedField(_SAMPLER, (None, 1)),
    "top_n_sigma": RefusedField(_SAMPLER, (None, 0, -1)),
    "typical_p": RefusedField(_SAMPLER, (None, 0, 1)),
}
COMMON: RefusedFields = MappingProxyType(
    {name: RefusedField(remedy) for name, remedy in _CHANGING.items()} | dict(_CHANGING_UNLESS)
)
"""Refused in every body that generates text."""

_SYSTEM = "write it as a message of role system"
_NO_TOOLS = "use /v1/chat/completions or /v1/responses"
_TEMPLATE_ADDS = "the chat template writes the special tokens; remove it"
COMPLETIONS: RefusedFields = MappingProxyType(
    {
        "chat_template_kwargs": RefusedField(_NO_TOOLS),
        "input": RefusedField("use prompt"),
        "max_completion_tokens": RefusedField("use max_tokens"),
        "max_output_tokens": RefusedField("use max_tokens"),
        "messages": RefusedField(_NO_TOOLS),
        "reasoning": RefusedField(_NO_TOOLS),
        "reasoning_effort": RefusedField(_NO_TOOLS),
        "system": RefusedField("write it into prompt"),
        "text": RefusedField("use response_format"),
        "thinking": RefusedField(_NO_TOOLS),
        "tool_choice": RefusedField(_NO_TOOLS, (None, "none", "auto")),
        "tools": RefusedField(_NO_TOOLS),
        "top_logprobs": RefusedField("use logprobs, which is a number here"),
    }
)
CHAT: RefusedFields = MappingProxyType(
    {
        "add_special_tokens": RefusedField(_TEMPLATE_ADDS),
        "input": RefusedField("use messages"),
        "instructions": RefusedField(_SYSTEM),
        "max_output_tokens": RefusedField("use max_completion_tokens"),
        "previous_response_id": RefusedField(_WHOLE_CONVERSATION),
        "reasoning": RefusedField("use reasoning_effort"),
        "suffix": RefusedField("it is not supported; remove it"),
        "system": RefusedField(_SYSTEM),
        "text": RefusedField("use response_format"),
    }
)
RESPONSES: RefusedFields = MappingProxyType(
    {
        "add_special_tokens": RefusedField(_TEMPLATE_ADDS),
        "context_management": RefusedField("the context is not compacted; send fewer items"),
        "continue_final_message": RefusedField("use /v1/chat/completions"),
        "echo": RefusedField("use /v1/completions"),
        "enable_response_messages": RefusedField("the response has them as output; remove it"),
        "function_call": RefusedField("use tools and tool_choice"),
        "functions": RefusedField("use tools and tool_choice"),
        "logprobs": RefusedField("log-probabilities are available from /v1/chat/completions"),
        "max_completion_tokens": RefusedField("use max_output_tokens"),
        "messages": RefusedField("use input"),
        "previous_input_messages": RefusedField("use input"),
        "reasoning_effort": RefusedField("use reasoning.effort"),
        "return_token_ids": RefusedField(_TOKEN_IDS),
        "suffix": RefusedField("it is not supported; remove it"),
        "system": RefusedField("use instructions"),
        "thinking": RefusedField("use reasoning.effort"),
    }
)
THINKING: RefusedFields = MappingProxyType(
    {
        "budget_tokens": RefusedField(_BUDGET),
        "clear_thinking": RefusedField("leave the reasoning out of messages"),
    }
)
"""Refused in `thinking` of chat."""
TOOL: RefusedFields = MappingProxyType(
    {
        "grammar": RefusedField("arguments are JSON; use parameters"),
        "input_schema": RefusedField("use parameters"),
        "inputSchema": RefusedField("use parameters"),
        "json_schema": RefusedField("use parameters"),
        "schema": RefusedField("use parameters"),
    }
)
"""Refused in a function that is offered."""
CALLERS = RefusedField(
    "code is not run here, so only the model calls tools; remove it", (*OFF, ["direct"])
)
FLAT_TOOL: RefusedFields = MappingProxyType({"allowed_callers": CALLERS})
"""Refused in a function of responses, next to those of TOOL."""
REASONING: RefusedFields = MappingProxyType(
    {
        "context": RefusedField("leave items of reasoning out of input", (None, "auto")),
        "mode": RefusedField("use reasoning.effort", (None, "standard")),
    }
)
"""Refused in `reasoning` of responses."""
WRAPPED_TOOL: RefusedFields = MappingProxyType(
    dict(TOOL)
    | {
        name: RefusedField(f"write it into function.{name}")
        for name in ("name", "description", "parameters", "strict")
    }
)
"""Refused next to the function in a tool of chat."""

_UNKNOWN_CONSTRAINT = "no such constraint is known; correct the name or remove it"
STRUCTURED_OUTPUTS: RefusedFields = MappingProxyType(
    {
        "disable_additional_properties": RefusedField("write additionalProperties into the schema"),
        "disable_any_whitespace": RefusedField("white space is that of the grammar; use grammar"),
        "whitespace_pattern": RefusedField("white space is that of the grammar; use grammar"),
    }
)
TOKENIZE: RefusedFields = MappingProxyType(
    {"truncate_prompt_tokens": RefusedField("texts are not cut; cut the ids that are returned")}
)
DETOKENIZE: RefusedFields = MappingProxyType(
    {"skip_special_tokens": RefusedField("the text contains special tokens; leave out their ids")}
)

IGNORED = frozenset(
    {
        "access_programs", "async", "background_options", "betas", "billing_policy",
        "block_binding", "bootstrap_host", "bootstrap_port", "bootstrap_room", "cache_control",
        "cache_prompt", "client_metadata", "custom_labels", "custom_params", "data_parallel_rank",
        "defer_loading", "diagnostics", "disagg_prefill_dp_rank", "dry_allowed_length", "dry_base",
        "dry_penalty_last_n", "dry_sequence_breakers", "dynatemp_exponent", "eager_input_streaming",
        "fallback_credit_token", "fallbacks", "generate_summary", "guided_decoding_backend",
        "id_slot", "image", "images_config", "include_obfuscation", "inference_geo",
        "input_examples", "keep_alive", "length_penalty", "max_dynamic_patch", "max_tool_calls",
        "metadata", "min_dynamic_patch", "mirostat_eta", "mirostat_tau", "mm_payload",
        "n_cache_reuse", "n_discard", "n_keep", "ngram_corpus_id", "num_ctx", "options",
        "output_schema", "parallel_tool_calls", "prediction", "priority",
        "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "repeat_last_n",
        "request_id",
        "return_flat_raw_top_logprobs_b64", "return_mm_kwargs", "return_progress",
        "return_token_offsets", "rid", "routed_dp_rank", "safety_identifier", "service_tier",
        "session_id", "spaces_between_special_tokens", "speed", "store", "stream_interval",
        "stream_reasoning", "summary", "think", "timings_per_token", "use_audio_in_video", "user",
        "user_profile_id", "verbosity", "video_config", "web_search", "workspace_id",
        "xtc_threshold",
    }
)  # fmt: skip
"""Known fields that are ignored: no answer depends on them, or clients send them unasked."""


def check_refused(fields: Mapping[str, object] | None, refusals: RefusedFields) -> None:
    """Raise for the first field that would change the answer."""
    if not fields:
        return
    for name, refusal in refusals.items():
        if name in fields and not any(_is_same(fields[name], each) for each in refusal.unless):
            raise field_error(name, f"it is not supported: {refusal.remedy}")


def check_constraint(fields: Mapping[str, object] | None, refusals: RefusedFields) -> None:
    """Raise for every unknown key of an object that does nothing but constrain; null is none."""
    check_refused(fields, refusals)
    for name, value in (fields or {}).items():
        if value is not None and name not in refusals:
            raise field_error(name, _UNKNOWN_CONSTRAINT)


def _is_same(value: object, other: object) -> bool:
    """Whether two JSON values are equal; false is not 0 here, and 1 not true."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)
