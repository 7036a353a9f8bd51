"""POST /v1/completions: text or token ids in, text out."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from specdecode_engine.batch.request import TokenLogprobs
from specdecode_engine.serve.openai.admission import (
    EncodedPrompt,
    GenerationApi,
    PreparedCall,
    generate,
)
from specdecode_engine.serve.openai.constraints import read_constraint
from specdecode_engine.serve.openai.formatting import ChoiceFormatter, ResponseHead
from specdecode_engine.serve.openai.output_processor import OutputProcessor, ScoredToken
from specdecode_engine.serve.openai.prompt_logprobs import prompt_logprob_objects
from specdecode_engine.serve.openai.protocol import LOWEST_LOGPROB, CompletionBody
from specdecode_engine.serve.openai.service import Service
from specdecode_engine.serve.text.tokenizer import Vocabulary

router = APIRouter()


def _prepare(body: CompletionBody, service: Service) -> PreparedCall:
    text, context_length = service.text, service.engine.context_length
    prompts: list[EncodedPrompt] = []
    for prompt in body.prompt:
        if isinstance(prompt, str):
            adds_special = body.add_special_tokens is not False
            ids = text.encode_prompt(prompt, body.prompt_field, context_length, adds_special)
            prompts.append((ids, prompt if body.echo else ""))
        else:
            prompts.append((prompt, text.decode(prompt) if body.echo else ""))
    constraint = read_constraint(body)
    # A grammar ends with any of the tokens: none of them can be part of the text.
    ends = service.stop_tokens.ids(in_chat=constraint is not None)
    return PreparedCall(tuple(prompts), constraint, ends)


class CompletionFormatter(ChoiceFormatter):
    """OpenAI's `text_completion` objects."""

    id_prefix = "cmpl"
    object_type = "text_completion"
    chunk_type = "text_completion"

    def __init__(self, body: CompletionBody, head: ResponseHead, vocabulary: Vocabulary) -> None:
        num_choices = len(body.prompt) * (body.n or 1)
        super().__init__(head, num_choices, body.include_usage, body.logprobs is not None)
        self._vocabulary = vocabulary

    def first_choice(self, index: int) -> None:
        """A stream begins with text."""

    def text_choice(self, index: int, text: str) -> dict[str, object]:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": None}

    def choice(self, whole: OutputProcessor) -> dict[str, object]:
        return {
            "index": whole.index,
            "text": whole.text,
            "logprobs": self._logprobs(whole.scored) if self._has_logprobs else None,
            "finish_reason": whole.finish_reason,
            **whole.token_ids_field,
            **whole.error_field,
            **whole.routed_experts_field,
            **self._prompt_logprobs(whole),
            **self._prompt_ids(whole),
        }

    def _prompt_ids(self, whole: OutputProcessor) -> dict[str, object]:
        return {"prompt_token_ids": [*whole.prompt_ids]} if self._shows_prompt(whole) else {}

    def _prompt_logprobs(self, whole: OutputProcessor) -> dict[str, object]:
        if whole.prompt_logprobs is None:
            return {}
        return {"prompt_logprobs": prompt_logprob_objects(whole.prompt_logprobs, self._vocabulary)}

    def chunk_choices(self, new: OutputProcessor) -> list[dict[str, Any]]:
        return [self.choice(new)]

    def _logprobs(self, scored: Sequence[ScoredToken]) -> dict[str, object]:
        """Return parallel lists; the top ones include the sampled token.

        The first token of a prompt has null in both lists of log-probabilities.
        """
        records = [token.logprobs for token in scored]
        return {
            "tokens": [self._vocabulary.shown(token.token_id) for token in scored],
            "token_logprobs": [each and max(each.logprob, LOWEST_LOGPROB) for each in records],
            "top_logprobs": [each and self._top(each) for each in records],
            "text_offset": [token.text_offset for token in scored],
        }

    def _top(self, record: TokenLogprobs) -> dict[str, float]:
        tokens = (*record.top, (record.token_id, record.logprob))
        shown = self._vocabulary.shown
        return {shown(token_id): max(logprob, LOWEST_LOGPROB) for token_id, logprob in tokens}


API = GenerationApi("/v1/completions", CompletionBody, _prepare, CompletionFormatter)


@router.post(API.path)
async def create_completion(request: Request) -> Response:
    return await generate(request, API)
