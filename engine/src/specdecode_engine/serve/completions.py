"""POST /v1/completions: text or ids in, text out."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from fastapi import APIRouter, Request, Response

from specdecode_engine.grammar import Grammar
from specdecode_engine.serve.admission import PromptIds, Wish, admit, check_model
from specdecode_engine.serve.answer import Answer
from specdecode_engine.serve.body import read_body
from specdecode_engine.serve.constraints import read_constraint
from specdecode_engine.serve.labels import read_label
from specdecode_engine.serve.logprobs import completion_logprobs
from specdecode_engine.serve.service import service_of
from specdecode_engine.serve.stream import Reply
from specdecode_engine.serve.text_model import TextModel
from specdecode_engine.serve.transcript import ScoredToken
from specdecode_engine.serve.vocabulary import Vocabulary
from specdecode_engine.serve.wire import CompletionBody, Prompt

DEFAULT_MAX_TOKENS = 16

router = APIRouter()


@router.post("/v1/completions")
async def create_completion(request: Request) -> Response:
    """Continue each prompt."""
    service = service_of(request)
    service.lifecycle.check_admission()
    started_s = service.clock()
    body = await read_body(request, CompletionBody)
    check_model(body, service.limits)
    prompts = await asyncio.to_thread(_read_prompts, body, service.text)
    grammar = await service.grammars.compile(read_constraint(body))
    wish = _read_wish(body, grammar, read_label(request, service))
    call = admit(body, prompts, wish, service.limits, service.text.defaults, started_s)
    form = CompletionForm(service.text.vocabulary, body.logprobs is not None)
    return Reply(service, call, form, is_stream=bool(body.stream))


def _read_wish(body: CompletionBody, grammar: Grammar | None, label: str) -> Wish:
    return Wish(
        max_tokens=body.max_tokens,
        default_max_tokens=DEFAULT_MAX_TOKENS,
        logprobs=body.logprobs,
        prompt_field="prompt",
        prompt_logprobs=body.logprobs if body.echo else None,
        grammar=grammar,
        label=label,
    )


def _read_prompts(body: CompletionBody, text: TextModel) -> tuple[PromptIds, ...]:
    prompts = []
    for prompt in body.prompt:
        token_ids = text.encode(prompt) if isinstance(prompt, str) else prompt
        echo = _written(prompt, text) if body.echo else ""
        prompts.append(PromptIds(token_ids, echo))
    return tuple(prompts)


def _written(prompt: Prompt, text: TextModel) -> str:
    return prompt if isinstance(prompt, str) else text.decode(prompt)


class CompletionForm:
    """OpenAI's `text_completion` objects."""

    def __init__(self, vocabulary: Vocabulary, has_logprobs: bool) -> None:
        self._vocabulary = vocabulary
        self._has_logprobs = has_logprobs

    async def whole(self, answer: Answer) -> dict[str, object]:
        """Return the answer in one piece."""
        choices = [
            self._choice(index, choice.text, choice.scored, choice.finish_reason)
            for index, choice in enumerate(await answer.choices())
        ]
        head = answer.call.head("text_completion")
        return head | {"choices": choices, "usage": answer.usage()}

    async def chunks(self, answer: Answer) -> AsyncIterator[dict[str, object]]:
        """Yield the answer as it comes."""
        head = answer.call.chunk_head("text_completion")
        async for delta in answer.deltas():
            choice = self._choice(delta.index, delta.text, delta.scored, delta.finish_reason)
            yield head | {"choices": [choice]}
        if answer.call.include_usage:
            yield head | {"choices": [], "usage": answer.usage()}

    def _choice(
        self, index: int, text: str, scored: Sequence[ScoredToken], finish_reason: str | None
    ) -> dict[str, object]:
        logprobs = completion_logprobs(scored, self._vocabulary) if self._has_logprobs else None
        return {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
