"""Requests to Prometheus: `query_range` over HTTP."""

import asyncio
import json
from http import HTTPStatus
from urllib.parse import urlsplit

import aiohttp

from specdecode_operator.plugin.errors import PluginError
from specdecode_operator.plugin.report.history import EngineTotals, WorkHistory
from specdecode_operator.plugin.report.promql import (
    BadResult,
    QueryRange,
    RangeSeries,
    queries,
    read_response,
    work_history,
)

PATH = "/api/v1/query_range"
TIMEOUT_S = 30.0
SHOWN_CHARS = 300


async def read_history(
    url: str, namespace: str, name: str, wanted: QueryRange
) -> tuple[WorkHistory | None, EngineTotals | None]:
    """Read the history of a resource; None for what Prometheus has no series of.

    Raises:
        PluginError: there is no response, or it is an error; the message has URL and remedy.
    """
    shown = _shown(url)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout, trust_env=True) as session:
        texts = queries(namespace, name, wanted.step_s)
        answers = await asyncio.gather(
            *(_query(session, url, shown, text, wanted) for text in texts.values()),
            return_exceptions=True,  # waits for all, because the session closes afterwards
        )
    found = {what: _answered(each) for what, each in zip(texts, answers, strict=True)}
    return work_history(f"Prometheus at {shown}", wanted, found)


def _answered(answer: tuple[RangeSeries, ...] | BaseException) -> tuple[RangeSeries, ...]:
    if isinstance(answer, BaseException):
        raise answer
    return answer


async def _query(
    session: aiohttp.ClientSession, url: str, shown: str, text: str, wanted: QueryRange
) -> tuple[RangeSeries, ...]:
    times = wanted.ends_s
    form = {"query": text, "start": times[0], "end": times[-1], "step": wanted.step_s}
    try:
        async with session.post(f"{url.rstrip('/')}{PATH}", data=form) as response:
            body = (await response.read()).decode(errors="replace")
            if response.status != HTTPStatus.OK:
                raise _failed(shown, f"status {response.status}, {_reason(body)}")
    except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as error:
        raise _failed(shown, f"no response: {error or type(error).__name__}") from None
    try:
        return read_response(body, wanted)
    except BadResult as error:
        raise _failed(shown, f"the response cannot be read: {error}") from None


def _failed(shown: str, what: str) -> PluginError:
    return PluginError(
        f"{shown}{PATH}: {what}; give the base URL of Prometheus, for example "
        "http://127.0.0.1:9090 after `kubectl port-forward svc/prometheus-operated 9090`, or leave "
        "out --prometheus to use what the cluster contains"
    )


def _reason(body: str) -> str:
    """The error that Prometheus describes in a response, else the beginning of the response."""
    try:
        return str(json.loads(body)["error"])[:SHOWN_CHARS]
    except (ValueError, KeyError, TypeError):
        return " ".join(body.split())[:SHOWN_CHARS] or "without a text"


def _shown(url: str) -> str:
    """The URL without a password.

    Raises:
        PluginError: it is not an HTTP URL.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or parts.scheme not in ("http", "https"):
        raise PluginError(
            f"--prometheus {url!r} is not the URL of a server; write http://HOST:PORT"
        )
    place = f"{host}:{port}" if port else host
    return f"{parts.scheme}://{place}{parts.path.rstrip('/')}"
