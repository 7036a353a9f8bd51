"""Where a pod answers, and reading its answer within bounds of time and size."""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType

import httpx

from specdecode_operator.kinds import Manifest

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class AnswerTooLong(ValueError):
    """A pod tells more than anybody asked for."""


def url_of(pod: Manifest, port: int, path: str) -> str | None:
    """Where a pod answers, by the address that its status tells; None while it has none."""
    address = (pod.get("status") or {}).get("podIP")
    if not address:
        return None
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{port}{path}"


async def read_answer(
    client: httpx.AsyncClient,
    url: str,
    limit_bytes: int,
    timeout_s: float,
    headers: Mapping[str, str] = _NO_HEADERS,
) -> bytes:
    """Read the body of an answer.

    Raises:
        AnswerTooLong: it is longer than `limit_bytes`.
        TimeoutError: it is not there in full in time.
        httpx.HTTPError: there is none, or it tells of an error.
    """
    body = bytearray()
    async with asyncio.timeout(timeout_s), client.stream("GET", url, headers=headers) as answer:
        answer.raise_for_status()
        async for chunk in answer.aiter_bytes():
            body += chunk
            if len(body) > limit_bytes:
                raise AnswerTooLong(f"{url} tells more than {limit_bytes} bytes")
    return bytes(body)
