"""Sends one question with the openai client, whole or streamed, and reports what went wrong."""

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx2  # what this release of openai speaks HTTP with
import openai

from checks.traffic.questions import Question

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
    """Return the text of the answer; of one with reasoning or tool calls, all parts as JSON.

    Raises:
        NoAnswer: refused, not reached, or cut off.
    """
    create: Any = client.chat.completions.create if question.is_chat else client.completions.create
    parts: defaultdict[str, str] = defaultdict(str)
    with _broken_off():
        answer = await create(**question.body(model), stream=is_stream)
        if is_stream:
            await _join(answer, question, parts)
        else:
            _add(answer.choices[0], question, parts)
    return json.dumps(parts, sort_keys=True) if parts.keys() - {"content"} else parts["content"]


async def _join(stream: Any, question: Question, parts: defaultdict[str, str]) -> None:
    finish = None
    async for chunk in stream:
        for choice in chunk.choices:
            _add(choice, question, parts)
            finish = choice.finish_reason or finish
    if finish is None:
        raise NoAnswer(f"the stream was cut after {sum(map(len, parts.values()))} characters")


def _add(choice: Any, question: Question, parts: defaultdict[str, str]) -> None:
    """Add a choice, or what is new in it, to the parts of an answer."""
    if not question.is_chat:
        parts["content"] += choice.text or ""
        return
    message = choice.delta if hasattr(choice, "delta") else choice.message
    if reasoning := getattr(message, "reasoning_content", None):
        parts["reasoning"] += reasoning
    parts["content"] += message.content or ""
    for number, call in enumerate(message.tool_calls or ()):
        index = getattr(call, "index", number)
        parts[f"tool {index}"] += call.function.name or ""
        parts[f"arguments {index}"] += call.function.arguments or ""


@contextmanager
def _broken_off() -> Iterator[None]:
    try:
        yield
    except _BROKEN as error:
        cause = f" ({error.__cause__!r})" if error.__cause__ else ""
        raise NoAnswer(f"{type(error).__name__}: {error}{cause}") from error
