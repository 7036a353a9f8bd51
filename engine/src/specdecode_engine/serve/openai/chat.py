"""POST /v1/chat/completions: a conversation in, the assistant's next message out."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from specdecode_engine.serve.openai.admission import EncodedPrompt
from specdecode_engine.serve.openai.handler import GenerationApi, generate
from specdecode_engine.serve.openai.logprobs import chat_logprobs
from specdecode_engine.serve.openai.output_processor import Delta, ScoredToken
from specdecode_engine.serve.openai.protocol import ChatBody, ChatMessage
from specdecode_engine.serve.text.tokenizer import TextProcessor
from specdecode_engine.serve.text.vocabulary import Vocabulary

router = APIRouter()


@router.post("/v1/chat/completions")
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation."""
    return await generate(request, API)


def _read_prompts(
    body: ChatBody, text: TextProcessor, context_length: int
) -> tuple[EncodedPrompt, ...]:
    rendered = text.chat.render([_for_template(message) for message in body.messages])
    text.check_length(rendered, body.prompt_field, context_length)
    return ((text.encode(rendered, add_special_tokens=False), ""),)


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
        """Return the choice with the role, which precedes the text of a stream."""
        first = {"role": "assistant", "content": ""}
        return {"index": index, "delta": first, "logprobs": None, "finish_reason": None}

    def choice(self, whole: Delta) -> dict[str, object]:
        """Return a choice of the response in one piece."""
        return {
            "index": whole.index,
            "message": {"role": "assistant", "content": whole.text, "refusal": None},
            "logprobs": self._logprobs(whole.scored),
            "finish_reason": whole.finish_reason,
        }

    def chunk_choice(self, delta: Delta) -> dict[str, object]:
        """Return a choice of a chunk."""
        return {
            "index": delta.index,
            "delta": {"content": delta.text} if delta.text else {},
            "logprobs": self._logprobs(delta.scored),
            "finish_reason": delta.finish_reason,
        }

    def _logprobs(self, scored: Sequence[ScoredToken]) -> dict[str, object] | None:
        return chat_logprobs(scored, self._vocabulary) if self._has_logprobs else None


API = GenerationApi(ChatBody, _read_prompts, ChatFormatter)
