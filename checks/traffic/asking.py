"""Sends one question over HTTP, whole or streamed, and reports what went wrong."""

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx

from checks.traffic.answers import END_OF_STREAM, READERS, Parts
from checks.traffic.questions import Question

TIMEOUT_S = 60.0
SHOWN = 200


class NoAnswer(Exception):
    """An attempt that brought no whole answer; the text has what was seen."""


@asynccontextmanager
async def asking(url: str, *, keeps_connections: bool) -> AsyncIterator[httpx.AsyncClient]:
    """A client that never retries, on kept connections or a new one each time."""
    limits = httpx.Limits() if keeps_connections else httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(
        base_url=url, limits=limits, trust_env=False, timeout=TIMEOUT_S
    ) as client:
        yield client


async def ask(client: httpx.AsyncClient, model: str, question: Question, is_stream: bool) -> str:
    """Return the text of the answer; of one with reasoning or tool calls, all parts as JSON.

    Raises:
        NoAnswer: refused, not reached, or cut off.
    """
    body, parts = question.body(model, is_stream=is_stream), Parts(defaultdict(str))
    with _broken_off():
        if is_stream:
            async with client.stream("POST", question.api.value, json=body) as response:
                if response.status_code != httpx.codes.OK:
                    await response.aread()
                _check(response)
                await _join(response, question, parts)
        else:
            response = await client.post(question.api.value, json=body)
            _check(response)
            READERS[question.api].add_whole(parts, response.json())
    return parts.text()


async def _join(response: httpx.Response, question: Question, parts: Parts) -> None:
    reader = READERS[question.api]
    async for line in response.aiter_lines():
        if line.startswith("data: ") and line != END_OF_STREAM:
            event: dict[str, Any] = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise NoAnswer(f"an event with an error: {line[:SHOWN]}")
            reader.add_event(parts, event)
    if not parts.is_complete:
        raise NoAnswer(f"the stream was cut after {len(parts.text())} characters")


def _check(response: httpx.Response) -> None:
    if response.status_code != httpx.codes.OK:
        raise NoAnswer(f"status {response.status_code}: {response.text[:SHOWN]}")


@contextmanager
def _broken_off() -> Iterator[None]:
    try:
        yield
    except httpx.HTTPError as error:
        cause = f" ({error.__cause__!r})" if error.__cause__ else ""
        raise NoAnswer(f"{type(error).__name__}: {error}{cause}") from error
