"""Asks pods how far downloads are and what is worse. An answer that does not come is no fault."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import httpx
from pydantic import ValidationError

from specdecode_api import names
from specdecode_api.report import Degradation, Degradations, Progress, Report
from specdecode_operator import pods as reading
from specdecode_operator.asking import AnswerTooLong, read_answer, url_of
from specdecode_operator.kinds import Manifest

R = TypeVar("R", bound=Report)

TIMEOUT_S = 2.0
MAX_PODS = 16
MAX_BYTES = 64 * 1024


class Peek:
    """Small requests to pods, by the addresses that their status tells."""

    def __init__(self, client: httpx.AsyncClient, port: int = names.ENGINE_PORT) -> None:
        self._client = client
        self._port = port

    async def __call__(self, pods: Sequence[Manifest]) -> Mapping[str, Progress]:
        """Progress by the name of the pod, of those that fetch and answer."""
        fetching = [pod for pod in pods if reading.is_fetching(pod)][:MAX_PODS]
        answers = await asyncio.gather(*(self._ask(pod) for pod in fetching))
        told = zip(fetching, answers, strict=True)
        return {pod["metadata"]["name"]: answer for pod, answer in told if answer is not None}

    async def degraded(self, pod: Manifest) -> tuple[Degradation, ...] | None:
        """What an engine does worse than it was told to; None where it does not answer."""
        answer = await self._get(pod, names.PATH_DEGRADED, Degradations)
        return answer.degraded if answer is not None else None

    async def _ask(self, pod: Manifest) -> Progress | None:
        return await self._get(pod, names.PATH_PROGRESS, Progress)

    async def _get(self, pod: Manifest, path: str, kind: type[R]) -> R | None:
        url = url_of(pod, self._port, path)
        if url is None:
            return None
        try:
            body = await read_answer(self._client, url, MAX_BYTES, TIMEOUT_S)
            return kind.model_validate_json(body)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, AnswerTooLong, ValidationError):
            return None


@asynccontextmanager
async def open_peek(port: int = names.ENGINE_PORT) -> AsyncIterator[Peek]:
    """Open connections of their own: no proxies, no redirects."""
    async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as client:
        yield Peek(client, port)
