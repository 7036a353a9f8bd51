"""HTTP client for engine pods: download progress, degradations, metrics, speculation tables.

Requests go to the IP address in a pod's status, through one connection pool.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import TypeVar

import aiohttp
from pydantic import ValidationError

from specdecode_api import names
from specdecode_api.internal_api import HEADER_TOKEN
from specdecode_api.report import Degradation, Degradations, DraftInUse, Progress, Report
from specdecode_api.table import TableEntry
from specdecode_operator.engines.vllm_version import version_degradations
from specdecode_operator.fleet import BadScrape, Reading, Scraped, exposition, vllm_reading
from specdecode_operator.fleet.reading import READ, reading_of
from specdecode_operator.objects import pods as reading_pods
from specdecode_operator.objects.container_start import engine_start_s
from specdecode_operator.objects.kinds import Manifest

R = TypeVar("R", bound=Report)

METRICS_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
"""Of a response with metrics, and of a request that replaces a table."""
REPORT_TIMEOUT = aiohttp.ClientTimeout(total=2.0)
"""Of a report, which is small and computed already."""
DRAFT_TIMEOUT = aiohttp.ClientTimeout(total=15.0)
"""Of a request to exchange a draft, which an engine answers after some seconds in any case."""
CONCURRENT_SCRAPES = 16
MAX_FETCHING_PODS = 16
"""Fetching pods that are queried for one reconcile."""
MAX_METRICS_BYTES = 4 * 2**20
MAX_REPORT_BYTES = 64 * 1024
MAX_ERROR_CHARS = 500

_METRICS_HEADERS: Mapping[str, str] = MappingProxyType({"accept": exposition.ACCEPT})
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class BadResponse(ValueError):
    """The status of a pod's response is an error, or its body exceeds the limit of its endpoint."""


@dataclass(frozen=True, slots=True)
class TableResult:
    """The response of an engine to a table."""

    table_hash: str = ""
    """Hash of the table that the engine runs now; empty after an error."""
    error: str = ""
    needs_restart: bool = False
    """Whether the engine can take the table only by a restart."""


class EngineClient:
    """Requests to the engines of any custom resource. A missing response is not an error."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        port: int = names.MANAGEMENT_PORT,
        runtime_port: int = names.ENGINE_PORT,
    ) -> None:
        self._http = http
        self._port = port
        self._runtime_port = runtime_port  # of engines of another runtime
        self._tokens: dict[str, str] = {}
        self._scrapes = asyncio.Semaphore(CONCURRENT_SCRAPES)

    def use_token(self, namespace: str, token: str) -> None:
        """From now on, send a token with changes of the engines of a namespace."""
        self._tokens[namespace] = token

    async def progress(self, pods: Sequence[Manifest]) -> Mapping[str, Progress]:
        """Download progress by pod name, of the pods that are fetching models and respond."""
        fetching = [pod for pod in pods if reading_pods.is_fetching(pod)][:MAX_FETCHING_PODS]
        found = await asyncio.gather(
            *(self._report(pod, names.PATH_PROGRESS, Progress) for pod in fetching)
        )
        answered = zip(fetching, found, strict=True)
        return {pod["metadata"]["name"]: each for pod, each in answered if each is not None}

    async def degraded(self, pod: Manifest) -> tuple[Degradation, ...] | None:
        """Degradations of a serving engine; None if it does not respond."""
        if reading_pods.is_other_runtime(pod):
            return await self._vllm_degraded(pod)
        report = await self._report(pod, names.PATH_DEGRADED, Degradations)
        return report.degraded if report is not None else None

    async def _vllm_degraded(self, pod: Manifest) -> tuple[Degradation, ...] | None:
        if (url := url_of(pod, self._runtime_port, names.PATH_VERSION)) is None:
            return None
        try:
            body = await read_response(self._http, url, MAX_REPORT_BYTES, REPORT_TIMEOUT)
        except (aiohttp.ClientError, TimeoutError, OSError, BadResponse):
            return None
        return version_degradations(body)

    async def scrape(self, pods: Sequence[Manifest]) -> Scraped:
        """Read the metrics of all pods; a pod without a complete response affects no other.

        They are parsed in a thread, because that takes milliseconds.
        """
        bodies = await asyncio.gather(*(self._metrics(pod) for pod in pods))
        results = await asyncio.to_thread(lambda: list(map(_parse, pods, bodies)))
        by_pod = list(zip(pods, results, strict=True))
        return Scraped(
            tuple(each for _, each in by_pod if isinstance(each, Reading)),
            {pod["metadata"]["name"]: each for pod, each in by_pod if isinstance(each, str)},
        )

    async def put_table(
        self,
        pod: Manifest,
        owner: str,
        table: Mapping[str, TableEntry],
        expires_after_s: float | None,
    ) -> TableResult:
        """Replace the speculation table of an engine that has an address, or renew its expiry.

        Args:
            owner: uid of the resource, which engines of the release before require.
            expires_after_s: the engine then returns to its last table without expiry.
        """
        url = url_of(pod, self._port, names.PATH_TABLE)
        assert url is not None, "its metrics were read at this address"
        entries = {bound: entry.model_dump(mode="json") for bound, entry in table.items()}
        document = {"table": entries, "expiresAfterSeconds": expires_after_s}
        response = await self._put(url, self._headers(pod, owner), document, METRICS_TIMEOUT)
        if isinstance(response, str):
            return TableResult(error=response)
        return _table_result(url, *response)

    async def draft(self, pod: Manifest) -> DraftInUse | None:
        """The draft of a serving engine; None if it does not respond."""
        return await self._report(pod, names.PATH_DRAFT, DraftInUse)

    async def put_draft(
        self, pod: Manifest, owner: str, path: str, config_hash: str
    ) -> DraftInUse | str:
        """Ask an engine to exchange its draft; return its state then, or why there is none.

        Args:
            owner: uid of the resource, which engines of the release before require.
            config_hash: of the configuration with this draft.
        """
        url = url_of(pod, self._port, names.PATH_DRAFT)
        if url is None:
            return "has no address yet"
        document = {"path": path, "configHash": config_hash}
        response = await self._put(url, self._headers(pod, owner), document, DRAFT_TIMEOUT)
        if isinstance(response, str):
            return response
        status, body = response
        if status not in (HTTPStatus.OK, HTTPStatus.ACCEPTED):
            return f"{url}: {_error_of(status, body)}"
        try:
            return DraftInUse.model_validate_json(body)
        except ValidationError as error:
            return str(error)

    def _headers(self, pod: Manifest, owner: str) -> dict[str, str]:
        """What permits a change of an engine, of this release and of the one before."""
        token = self._tokens.get(pod["metadata"].get("namespace", ""))
        return {names.HEADER_OWNER: owner, **({HEADER_TOKEN: token} if token else {})}

    async def _put(
        self,
        url: str,
        headers: Mapping[str, str],
        document: Mapping[str, object],
        timeout: aiohttp.ClientTimeout,
    ) -> tuple[int, bytes] | str:
        """Send a document; return status and body of the response, or why there is none."""
        try:
            async with self._http.put(
                url, json=document, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                return response.status, await _body(response, MAX_REPORT_BYTES)
        except BadResponse as error:
            return str(error)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return _no_answer(url, error)

    async def _metrics(self, pod: Manifest) -> bytes | str:
        """The response of one pod, or why there is none."""
        is_other = reading_pods.is_other_runtime(pod)
        url = url_of(pod, self._runtime_port if is_other else self._port, names.PATH_METRICS)
        if url is None:
            return "has no address yet"
        headers = _NO_HEADERS if is_other else _METRICS_HEADERS
        try:
            async with self._scrapes:
                return await read_response(
                    self._http, url, MAX_METRICS_BYTES, METRICS_TIMEOUT, headers
                )
        except BadResponse as error:
            return str(error)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return _no_answer(url, error)

    async def _report(self, pod: Manifest, path: str, kind: type[R]) -> R | None:
        url = url_of(pod, self._port, path)
        if url is None:
            return None
        try:
            body = await read_response(self._http, url, MAX_REPORT_BYTES, REPORT_TIMEOUT)
            return kind.model_validate_json(body)
        except (aiohttp.ClientError, TimeoutError, OSError, BadResponse, ValidationError):
            return None


def url_of(pod: Manifest, port: int, path: str) -> str | None:
    """URL on a pod, by the IP address in its status; None while the pod has no address."""
    address = (pod.get("status") or {}).get("podIP")
    if not address:
        return None
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{port}{path}"


async def read_response(
    http: aiohttp.ClientSession,
    url: str,
    limit_bytes: int,
    timeout: aiohttp.ClientTimeout,
    headers: Mapping[str, str] = _NO_HEADERS,
) -> bytes:
    """Return the body of the response to a GET request; redirects are not followed.

    Raises:
        BadResponse: the status is an error, or the body is longer than `limit_bytes`.
        TimeoutError: the body is not complete in time.
        aiohttp.ClientError: there is no response.
    """
    async with http.get(url, headers=headers, timeout=timeout, allow_redirects=False) as response:
        if response.status != HTTPStatus.OK:
            raise BadResponse(f"{url}: status {response.status}")
        return await _body(response, limit_bytes)


async def _body(response: aiohttp.ClientResponse, limit_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > limit_bytes:
            raise BadResponse(f"{response.url}: the response is longer than {limit_bytes} bytes")
    return bytes(body)


def _no_answer(url: str, error: Exception) -> str:
    return f"{url} does not answer: {str(error) or type(error).__name__}"


def _parse(pod: Manifest, body: bytes | str) -> Reading | str:
    """The reading of one pod, or why there is none."""
    if isinstance(body, str):
        return body
    pod_uid = str(pod["metadata"]["uid"])
    try:
        if reading_pods.is_other_runtime(pod):
            samples = exposition.read_lines(body.decode(errors="replace"), vllm_reading.READ)
            config_hash = reading_pods.config_hash_of(pod) or ""
            start_s = engine_start_s(pod)
            return vllm_reading.vllm_reading(pod_uid, config_hash, samples, start_s)
        return reading_of(pod_uid, exposition.read(body.decode(errors="replace"), READ))
    except BadScrape as error:
        return str(error)


def _table_result(url: str, status: int, body: bytes) -> TableResult:
    if status != HTTPStatus.OK:
        needs_restart = status == HTTPStatus.CONFLICT
        return TableResult(error=f"{url}: {_error_of(status, body)}", needs_restart=needs_restart)
    try:
        return TableResult(str(json.loads(body)["table_hash"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return TableResult(error=f"{url}: the response contains no table_hash")


def _error_of(status: int, body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])[:MAX_ERROR_CHARS]
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"status {status}"


@asynccontextmanager
async def open_engine_client(
    port: int = names.MANAGEMENT_PORT, runtime_port: int = names.ENGINE_PORT
) -> AsyncIterator[EngineClient]:
    """Open a connection pool without proxies and cookies."""
    jar = aiohttp.DummyCookieJar()
    async with aiohttp.ClientSession(trust_env=False, cookie_jar=jar) as http:
        yield EngineClient(http, port, runtime_port)
