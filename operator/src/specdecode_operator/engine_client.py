"""HTTP client for engine pods: download progress, degradations, metrics, speculation tables.

Requests go to the IP address in a pod's status, through one connection pool.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TypeVar

import httpx
from pydantic import ValidationError

from specdecode_api import names
from specdecode_api.report import Degradation, Degradations, Progress, Report
from specdecode_api.table import TableEntry
from specdecode_operator import pods as reading
from specdecode_operator.engine_http import ResponseTooLong, read_response, url_of
from specdecode_operator.fleet.scrape import TIMEOUT_S as SCRAPE_TIMEOUT_S
from specdecode_operator.fleet.scrape import Scraper
from specdecode_operator.kinds import Manifest

R = TypeVar("R", bound=Report)

REPORT_TIMEOUT_S = 2.0
"""Timeout of a report, which is small and computed already."""
MAX_PODS = 16
"""Fetching pods that are queried for one reconcile."""
MAX_BYTES = 64 * 1024
MAX_ERROR_CHARS = 500


class EngineClient:
    """Requests to the engines of any custom resource. A missing response is not an error."""

    def __init__(self, http: httpx.AsyncClient, port: int = names.MANAGEMENT_PORT) -> None:
        self._http = http
        self._port = port
        self.scrape = Scraper(http, port)

    async def progress(self, pods: Sequence[Manifest]) -> Mapping[str, Progress]:
        """Download progress by pod name, of the pods that are fetching models and respond."""
        fetching = [pod for pod in pods if reading.is_fetching(pod)][:MAX_PODS]
        found = await asyncio.gather(
            *(self._report(pod, names.PATH_PROGRESS, Progress) for pod in fetching)
        )
        answered = zip(fetching, found, strict=True)
        return {pod["metadata"]["name"]: each for pod, each in answered if each is not None}

    async def degraded(self, pod: Manifest) -> tuple[Degradation, ...] | None:
        """Degradations of a serving engine; None if it does not respond."""
        report = await self._report(pod, names.PATH_DEGRADED, Degradations)
        return report.degraded if report is not None else None

    async def put_table(
        self, pod: Manifest, owner: str, table: Mapping[str, TableEntry]
    ) -> tuple[bool, str]:
        """Replace the speculation table of an engine that has an address.

        Returns:
            whether the engine needs a restart for this table, and the error; ("" if replaced).
        """
        url = url_of(pod, self._port, names.PATH_TABLE)
        assert url is not None, "its metrics were read at this address"
        document = {bound: entry.model_dump(mode="json") for bound, entry in table.items()}
        headers = {names.HEADER_OWNER: owner}
        try:
            response = await self._http.put(
                url, json=document, headers=headers, timeout=SCRAPE_TIMEOUT_S
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return False, f"{url} does not answer: {str(error) or type(error).__name__}"
        if response.is_success:
            return False, ""
        return response.status_code == HTTPStatus.CONFLICT, f"{url}: {_error_of(response)}"

    async def _report(self, pod: Manifest, path: str, kind: type[R]) -> R | None:
        url = url_of(pod, self._port, path)
        if url is None:
            return None
        try:
            body = await read_response(self._http, url, MAX_BYTES, REPORT_TIMEOUT_S)
            return kind.model_validate_json(body)
        except (
            httpx.HTTPError,
            httpx.InvalidURL,
            TimeoutError,
            ResponseTooLong,
            ValidationError,
        ):
            return None


def _error_of(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])[:MAX_ERROR_CHARS]
    except (ValueError, KeyError, TypeError):
        return f"status {response.status_code}"


@asynccontextmanager
async def open_engine_client(port: int = names.MANAGEMENT_PORT) -> AsyncIterator[EngineClient]:
    """Open a connection pool without proxies; redirects are not followed."""
    async with httpx.AsyncClient(timeout=SCRAPE_TIMEOUT_S, trust_env=False) as http:
        yield EngineClient(http, port)
