"""Sends one question with the openai client, whole or streamed, and reports what went wrong."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx2  # what this release of openai speaks HTTP with
import openai

from traffic.questions import Question

TIMEOUT_S = 60.0
_BROKEN = (openai.APIError, httpx2.HTTPError)


class NoAnswer(Exception):
    """An attempt that brought no whole answer; the text has what was seen."""


@asynccontextmanager
async def asking(url: str, *, keeps_connections: bool) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client that never retries automatically, on kept connections or a new one each time."""
    limits = httpx2.Limits() if keeps_connections else httpx2.Limits(max_keepalive_connections=0)
    async with (
        httpx2.AsyncClient(limits=limits, trust_env=False, timeout=TIMEOUT_S) as http,
        openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, http_client=http) as client,
    ):
        yield client


async def ask(client: openai.AsyncOpenAI, model: str, question: Question, is_stream: bool) -> str:
    """Return the whole text of the answer.

    Raises:
        NoAnswer: refused, not reached, or cut off.
    """
    create: Any = client.chat.completions.create if question.is_chat else client.completions.create
    with _broken_off():
        answer = await create(**question.body(model), stream=is_stream)
        if not is_stream:
            return _whole(answer.choices[0], question)
        return await _joined(answer, question)


async def _joined(stream: Any, question: Question) -> str:
    pieces: list[str] = []
    finish = None
    async for chunk in stream:
        for choice in chunk.choices:
            pieces.append((choice.delta.content if question.is_chat else choice.text) or "")
            finish = choice.finish_reason or finish
    if finish is None:
        raise NoAnswer(f"the stream was cut after {len(pieces)} pieces")
    return "".join(pieces)


def _whole(choice: Any, question: Question) -> str:
    return (choice.message.content if question.is_chat else choice.text) or ""


@contextmanager
def _broken_off() -> Iterator[None]:
    try:
        yield
    except _BROKEN as error:
        cause = f" ({error.__cause__!r})" if error.__cause__ else ""
        raise NoAnswer(f"{type(error).__name__}: {error}{cause}") from error
