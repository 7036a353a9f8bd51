"""POST /v1/completions: text or token ids in, text out."""

from fastapi import APIRouter, Request, Response

from specdecode_engine.serve.openai.admission import EncodedPrompt
from specdecode_engine.serve.openai.handler import GenerationApi, generate
from specdecode_engine.serve.openai.logprobs import completion_logprobs
from specdecode_engine.serve.openai.output_processor import Delta
from specdecode_engine.serve.openai.protocol import CompletionBody
from specdecode_engine.serve.text.tokenizer import TextProcessor
from specdecode_engine.serve.text.vocabulary import Vocabulary

router = APIRouter()


@router.post("/v1/completions")
async def create_completion(request: Request) -> Response:
    """Continue each prompt."""
    return await generate(request, API)


def _read_prompts(
    body: CompletionBody, text: TextProcessor, context_length: int
) -> tuple[EncodedPrompt, ...]:
    prompts: list[EncodedPrompt] = []
    for prompt in body.prompt:
        if isinstance(prompt, str):
            text.check_length(prompt, body.prompt_field, context_length)
            prompts.append((text.encode(prompt), prompt if body.echo else ""))
        else:
            prompts.append((prompt, text.decode(prompt) if body.echo else ""))
    return tuple(prompts)


class CompletionFormatter:
    """OpenAI's `text_completion` objects."""

    id_prefix = "cmpl"
    object_type = "text_completion"
    chunk_type = "text_completion"

    def __init__(self, body: CompletionBody, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._has_logprobs = body.logprobs is not None

    def first_choice(self, index: int) -> None:
        """Return None: a stream begins with text."""

    def choice(self, whole: Delta) -> dict[str, object]:
        """Return a choice of the response in one piece."""
        has_logprobs, vocabulary = self._has_logprobs, self._vocabulary
        return {
            "index": whole.index,
            "text": whole.text,
            "logprobs": completion_logprobs(whole.scored, vocabulary) if has_logprobs else None,
            "finish_reason": whole.finish_reason,
        }

    def chunk_choice(self, delta: Delta) -> dict[str, object]:
        """Return a choice of a chunk, which has the same fields."""
        return self.choice(delta)


API = GenerationApi(CompletionBody, _read_prompts, CompletionFormatter)
