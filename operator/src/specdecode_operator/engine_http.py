"""URLs of engine pods, and bounded reads of their responses."""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType

import httpx

from specdecode_operator.kinds import Manifest

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class ResponseTooLong(ValueError):
    """A response of a pod exceeds the limit of its endpoint."""


def url_of(pod: Manifest, port: int, path: str) -> str | None:
    """URL on a pod, by the IP address in its status; None while the pod has no address."""
    address = (pod.get("status") or {}).get("podIP")
    if not address:
        return None
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{port}{path}"


async def read_response(
    client: httpx.AsyncClient,
    url: str,
    limit_bytes: int,
    timeout_s: float,
    headers: Mapping[str, str] = _NO_HEADERS,
) -> bytes:
    """Return the body of the response to a GET request.

    Raises:
        ResponseTooLong: the body is longer than `limit_bytes`.
        TimeoutError: the body is not complete after `timeout_s`.
        httpx.HTTPError: there is no response, or its status is an error.
    """
    body = bytearray()
    async with asyncio.timeout(timeout_s), client.stream("GET", url, headers=headers) as response:
        response.raise_for_status()
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > limit_bytes:
                raise ResponseTooLong(f"{url}: the response is longer than {limit_bytes} bytes")
    return bytes(body)
