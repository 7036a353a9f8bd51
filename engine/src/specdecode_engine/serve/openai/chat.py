"""POST /v1/chat/completions: a conversation in, the assistant's next message out."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from specdecode_engine.serve.openai.admission import EncodedPrompt, generate
from specdecode_engine.serve.openai.chat_protocol import ChatBody, ChatMessage
from specdecode_engine.serve.openai.output_processor import OutputProcessor, ScoredToken
from specdecode_engine.serve.openai.protocol import LOWEST_LOGPROB
from specdecode_engine.serve.text.tokenizer import TextProcessor, Vocabulary

router = APIRouter()


@router.post("/v1/chat/completions")
async def create_chat_completion(request: Request) -> Response:
    return await generate(request, ChatBody, read_prompts, ChatFormatter)


def read_prompts(
    body: ChatBody, text: TextProcessor, context_length: int
) -> tuple[EncodedPrompt, ...]:
    """Return the prompt of a conversation; the arguments are those of `admission.generate`."""
    rendered = text.render_chat([_for_template(message) for message in body.messages])
    ids = text.encode_prompt(rendered, body.prompt_field, context_length, add_special_tokens=False)
    return ((ids, ""),)


def _for_template(message: ChatMessage) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    return {"content": ""} | message.model_dump(exclude_none=True) | {"role": role}


class ChatFormatter:
    """OpenAI's `chat.completion` and `chat.completion.chunk` objects."""

    id_prefix = "chatcmpl"
    object_type = "chat.completion"
    chunk_type = "chat.completion.chunk"

    def __init__(self, body: ChatBody, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._has_logprobs = bool(body.logprobs)

    def first_choice(self, index: int) -> dict[str, object]:
        first = {"role": "assistant", "content": ""}
        return {"index": index, "delta": first, "logprobs": None, "finish_reason": None}

    def choice(self, whole: OutputProcessor) -> dict[str, object]:
        return {
            "index": whole.index,
            "message": {"role": "assistant", "content": whole.text, "refusal": None},
            "logprobs": self._logprobs(whole.scored),
            "finish_reason": whole.finish_reason,
            **whole.error_field,
        }

    def chunk_choice(self, new: OutputProcessor) -> dict[str, object]:
        return {
            "index": new.index,
            "delta": {"content": new.text} if new.text else {},
            "logprobs": self._logprobs(new.scored),
            "finish_reason": new.finish_reason,
            **new.error_field,
        }

    def _logprobs(self, scored: Sequence[ScoredToken]) -> dict[str, object] | None:
        if not self._has_logprobs:
            return None
        content = [
            self._token(record.token_id, record.logprob)
            | {"top_logprobs": [self._token(*likely) for likely in record.top]}
            for record in (token.logprobs for token in scored)
            if record is not None
        ]
        return {"content": content, "refusal": None}

    def _token(self, token_id: int, logprob: float) -> dict[str, object]:
        return {
            "token": self._vocabulary.shown(token_id),
            "logprob": max(logprob, LOWEST_LOGPROB),
            "bytes": list(self._vocabulary.text_bytes(token_id)) or None,
        }
