"""Polls of engines of another runtime: their health, and how many requests they have."""

import math
from http import HTTPStatus
from typing import Final

import aiohttp

from specdecode_api.internal_api import EngineState
from specdecode_api.names import PATH_HEALTH, PATH_METRICS
from specdecode_router.settings import EngineAddress
from specdecode_router.upstream import CONNECT_SECONDS, POLL_SECONDS, lost

METRICS_SECONDS: Final = 2.0
MAX_METRICS_BYTES: Final = 4 * 2**20
MAX_REQUESTS: Final = 1_000_000
REQUESTS: Final = (b"vllm:num_requests_running{", b"vllm:num_requests_waiting{")


async def read_plain_state(session: aiohttp.ClientSession, address: EngineAddress) -> EngineState:
    """Return the state of an engine: its health and its requests are all that is known.

    It stays healthy while it shuts down. Without metrics, as with --disable-log-stats, it has no
    requests but those of this router.

    Raises:
        EngineLost: it does not answer.
    """
    timeout = aiohttp.ClientTimeout(total=POLL_SECONDS, sock_connect=CONNECT_SECONDS)
    try:
        async with session.get(address.url(PATH_HEALTH), timeout=timeout) as response:
            is_healthy = response.status == HTTPStatus.OK
            reason = None if is_healthy else f"its health is {response.status}"
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise lost(error) from None
    return EngineState(
        reason=reason,
        resume_id=None,
        model="",
        config_hash="",
        api_port=address.port,
        requests=await _read_requests(session, address) if is_healthy else 0,
        capacity=0,
        max_body_bytes=0,
    )


async def _read_requests(session: aiohttp.ClientSession, address: EngineAddress) -> int:
    """Return how many requests run and wait; 0 where metrics cannot be read."""
    timeout = aiohttp.ClientTimeout(total=METRICS_SECONDS)
    text = bytearray()
    try:
        async with session.get(address.url(PATH_METRICS), timeout=timeout) as response:
            if response.status != HTTPStatus.OK:
                return 0
            async for data in response.content.iter_any():
                text += data
                if len(text) > MAX_METRICS_BYTES:
                    return 0
    except (aiohttp.ClientError, OSError, TimeoutError):
        return 0
    return count_requests(bytes(text))


def count_requests(text: bytes) -> int:
    """Return the requests that run and wait in all engine cores, from an engine's metrics."""
    lines = (line for line in text.splitlines() if line.startswith(REQUESTS))
    return min(MAX_REQUESTS, int(sum(map(_value, lines))))


def _value(line: bytes) -> float:
    """Return the value of a sample; 0 if it is not a count."""
    try:
        value = float(line.rpartition(b"}")[2].split()[0])
    except (ValueError, IndexError):
        return 0.0
    return value if math.isfinite(value) and 0 <= value <= MAX_REQUESTS else 0.0
