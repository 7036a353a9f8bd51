"""POST /v1/chat/completions: a conversation in, the assistant's next turn out."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from specdecode_engine.grammar import Grammar
from specdecode_engine.serve.admission import PromptIds, Wish, admit, check_model
from specdecode_engine.serve.answer import Answer
from specdecode_engine.serve.body import read_body
from specdecode_engine.serve.constraints import read_constraint
from specdecode_engine.serve.labels import read_label
from specdecode_engine.serve.logprobs import chat_logprobs
from specdecode_engine.serve.service import service_of
from specdecode_engine.serve.stream import Reply
from specdecode_engine.serve.text_model import TextModel
from specdecode_engine.serve.transcript import Delta, ScoredToken
from specdecode_engine.serve.vocabulary import Vocabulary
from specdecode_engine.serve.wire import ChatBody, ChatMessage

router = APIRouter()


@router.post("/v1/chat/completions")
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation."""
    service = service_of(request)
    service.lifecycle.check_admission()
    started_s = service.clock()
    body = await read_body(request, ChatBody)
    check_model(body, service.limits)
    prompt = await asyncio.to_thread(_read_prompt, body, service.text)
    grammar = await service.grammars.compile(read_constraint(body))
    wish = _read_wish(body, grammar, read_label(request, service))
    call = admit(body, (prompt,), wish, service.limits, service.text.defaults, started_s)
    form = ChatForm(service.text.vocabulary, bool(body.logprobs))
    return Reply(service, call, form, is_stream=bool(body.stream))


def _read_wish(body: ChatBody, grammar: Grammar | None, label: str) -> Wish:
    has_new_name = body.max_completion_tokens is not None
    return Wish(
        max_tokens=body.max_completion_tokens if has_new_name else body.max_tokens,
        default_max_tokens=None,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_field="messages",
        length_field="max_completion_tokens" if has_new_name else "max_tokens",
        grammar=grammar,
        label=label,
    )


def _read_prompt(body: ChatBody, text: TextModel) -> PromptIds:
    rendered = text.chat.render([_for_template(message) for message in body.messages])
    return PromptIds(text.encode(rendered, add_special_tokens=False))


def _for_template(message: ChatMessage) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    return {"content": ""} | message.model_dump(exclude_none=True) | {"role": role}


class ChatForm:
    """OpenAI's `chat.completion` objects."""

    def __init__(self, vocabulary: Vocabulary, has_logprobs: bool) -> None:
        self._vocabulary = vocabulary
        self._has_logprobs = has_logprobs

    async def whole(self, answer: Answer) -> dict[str, object]:
        """Return the answer in one piece."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": choice.text, "refusal": None},
                "logprobs": self._logprobs(choice.scored),
                "finish_reason": choice.finish_reason,
            }
            for index, choice in enumerate(await answer.choices())
        ]
        return answer.call.head("chat.completion") | {"choices": choices, "usage": answer.usage()}

    async def chunks(self, answer: Answer) -> AsyncIterator[dict[str, object]]:
        """Yield the answer as it comes."""
        head = answer.call.chunk_head("chat.completion.chunk")
        for index in range(len(answer.call.requests)):
            yield head | {"choices": [_opening(index)]}
        async for delta in answer.deltas():
            yield head | {"choices": [self._choice(delta)]}
        if answer.call.include_usage:
            yield head | {"choices": [], "usage": answer.usage()}

    def _choice(self, delta: Delta) -> dict[str, object]:
        return {
            "index": delta.index,
            "delta": {"content": delta.text} if delta.text else {},
            "logprobs": self._logprobs(delta.scored),
            "finish_reason": delta.finish_reason,
        }

    def _logprobs(self, scored: Sequence[ScoredToken]) -> dict[str, object] | None:
        return chat_logprobs(scored, self._vocabulary) if self._has_logprobs else None


def _opening(index: int) -> dict[str, object]:
    opening = {"role": "assistant", "content": ""}
    return {"index": index, "delta": opening, "logprobs": None, "finish_reason": None}
