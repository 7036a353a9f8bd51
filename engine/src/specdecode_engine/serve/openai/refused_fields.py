"""Fields of OpenAI, vLLM and SGLang that would change an answer and are not available here.

They are refused by name unless their value changes nothing. Other unknown fields are ignored: they
name, bill or route a call, or matter only with a field of this list.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from specdecode_engine.serve.errors import field_error

_OFF: tuple[object, ...] = (None, False, 0, "", [], {})

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "audio": "only text is generated; remove it",
        "cache_salt": "the prefix cache is not divided by clients; remove it, or disable the cache "
        "(memory.prefix_cache)",
        "chat_template": "only the template of the checkpoint is used; remove it",
        "custom_logit_processor": "code of clients is not run; use logit_bias or a grammar",
        "documents": "documents are not supported; write them into messages",
        "input_ids": "use prompt of /v1/completions, which may be token ids",
        "kv_transfer_params": "prefill and decode are not separated; remove it",
        "logits_processors": "code of clients is not run; use logit_bias or a grammar",
        "lora_path": "adapters are not supported; remove it",
        "media_io_kwargs": "only text is read; remove it",
        "mm_processor_kwargs": "only text is read; remove it",
        "priority": "requests run in the order in which they arrive; remove it",
        "prompt_embeds": "embeddings are not supported; use prompt",
        "repetition_detection": "use repetition_penalty or frequency_penalty",
        "return_hidden_states": "hidden states are not returned; remove it",
        "return_token_ids": "token ids are not returned; use POST /tokenize",
        "return_tokens_as_token_ids": "token ids are not returned; use POST /tokenize",
        "session_params": "sessions are not supported; send the whole conversation",
        "thinking_token_budget": "use max_tokens or reasoning_effort",
        "truncate_prompt_tokens": "prompts are not cut; shorten it, with POST /tokenize if needed",
        "use_beam_search": "beam search is not supported; use n",
        "verbosity": "ask for it in messages",
        "vllm_xargs": "extensions of vLLM are not supported; remove it",
        "web_search_options": "the engine does not search; offer a tool",
    }
)
"""Refused unless null, false, 0 or empty, with the remedy."""

REFUSED_UNLESS: Mapping[str, tuple[tuple[object, ...], str]] = MappingProxyType(
    {
        "best_of": ((None, 1), "every generated answer is returned; use n"),
        "modalities": ((None, ["text"]), 'only ["text"] is generated'),
        "skip_special_tokens": ((None, True), "special tokens are never part of the text"),
        "separate_reasoning": ((None, True), "reasoning is in a field of its own; remove it"),
    }
)
"""Refused unless one of the values."""


def check_refused(fields: Mapping[str, Any]) -> None:
    """Raise for the first field that would change the answer."""
    for name, remedy in REFUSED.items():
        if name in fields and not any(fields[name] == off for off in _OFF):
            raise field_error(name, f"it is not supported: {remedy}")
    for name, (values, remedy) in REFUSED_UNLESS.items():
        if name in fields and not any(fields[name] == value for value in values):
            raise field_error(name, f"the value is not supported: {remedy}")
