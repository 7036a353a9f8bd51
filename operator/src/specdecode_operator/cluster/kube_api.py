"""Requests to the API server as JSON: credentials, timeouts, errors. The only Kubernetes I/O.

The official client carries the requests.
"""

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from specdecode_operator.cluster.metrics import Metrics
from specdecode_operator.objects.kinds import Manifest

log = logging.getLogger(__name__)

MAX_MESSAGE = 800
MAX_INLINE_CHARS = 64 * 1024
"""Longer responses are parsed in a thread: the event loop must not stand still for milliseconds."""
APPLY = "application/apply-patch+yaml"
JSON = "application/json"
_UNTYPED = "failed to create typed patch object"
"""Message of server-side apply for an unknown field, or a value of another type."""


class KubeApiError(Exception):
    """The API server refused a request, or could not be reached (`code` 0)."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed later without any change."""
        if _UNTYPED in str(self):  # reported with code 500, although the request is invalid
            return False
        return self.code in (0, 401, 408, 409, 429) or self.code >= HTTPStatus.INTERNAL_SERVER_ERROR


async def load_configuration(kubeconfig: str | None) -> Configuration:
    """Address and credentials: of the given file, else of the pod, else of `~/.kube/config`."""
    configuration = Configuration()
    # Otherwise aiohttp looks for ~/.netrc and proxies before every request, in a thread, which
    # takes longer than the request. Kopf's watches use neither.
    configuration.client_session_kwargs = {"trust_env": False}
    if kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
        config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
    else:
        await config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=kubeconfig, client_configuration=configuration
        )
    return configuration


class KubeApi:
    """Sends requests, and counts those that fail."""

    def __init__(
        self, client: ApiClient, metrics: Metrics, timeout_seconds: float, kubeconfig: str | None
    ) -> None:
        self._client = client
        self._metrics = metrics
        self._timeout_seconds = timeout_seconds
        self._kubeconfig = kubeconfig

    async def renewed(self) -> Configuration:
        """Reload credentials and address: tokens expire, and files are replaced.

        The client reloads a pod's token every minute of the wall clock, which may have been set
        back, and never reloads the token of a kubeconfig.
        """
        configuration: Configuration = self._client.configuration
        try:
            fresh = await load_configuration(self._kubeconfig)
        except (config.ConfigException, OSError) as error:
            log.warning("cannot reload credentials", extra={"why": str(error)})
            return configuration
        configuration.api_key = fresh.api_key
        configuration.refresh_api_key_hook = fresh.refresh_api_key_hook
        return configuration

    async def request(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: Manifest | None = None,
        content_type: str = JSON,
        usual: tuple[int, ...] = (),
        *,
        parse: Callable[[str], Manifest] = json.loads,
    ) -> Manifest:
        """Send a request; errors with a `usual` code are expected and not counted.

        Raises:
            KubeApiError: the API server refused the request, or could not be reached.
        """
        text = await self._text(method, path, query, body, content_type, usual)
        try:
            return await _parsed(parse, text)
        except ValueError as error:
            raise KubeApiError(0, f"{method} {path}: the response is not JSON: {error}") from error

    async def _text(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: Manifest | None = None,
        content_type: str = JSON,
        usual: tuple[int, ...] = (),
    ) -> str:
        """The body of a response that is not an error."""
        code, text = await self._send(method, path, query or {}, body, content_type)
        if code == HTTPStatus.UNAUTHORIZED:
            await self.renewed()
            code, text = await self._send(method, path, query or {}, body, content_type)
        if code >= HTTPStatus.BAD_REQUEST:
            if code not in usual:
                self._metrics.api_errors.labels(code=str(code)).inc()
            raise KubeApiError(code, f"{method} {path}: {_message(text)}")
        return text

    async def _send(
        self,
        method: str,
        path: str,
        query: dict[str, str],
        body: Manifest | None,
        content_type: str,
    ) -> tuple[int, str]:
        """Send one request; returns status code and body."""
        try:
            verb, url, headers, _, _ = await self._client.param_serialize(
                method,
                path,
                query_params=list(query.items()),
                header_params={"Accept": JSON, "Content-Type": content_type},
                auth_settings=["BearerToken"],
            )
            response = await self._client.call_api(
                verb, url, headers, body, _request_timeout=self._timeout_seconds
            )
            text = (await response.read()).decode(errors="replace")  # type: ignore[no-untyped-call]
            return response.status, text
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._metrics.api_errors.labels(code="unreachable").inc()
            raise KubeApiError(0, f"{method} {path}: {error or type(error).__name__}") from error


async def _parsed(parse: Callable[[str], Manifest], text: str) -> Manifest:
    if len(text) <= MAX_INLINE_CHARS:
        return parse(text)
    return await asyncio.to_thread(parse, text)


def _message(text: str) -> str:
    try:
        answer: Any = json.loads(text)
        return str(answer["message"])[:MAX_MESSAGE]
    except (ValueError, KeyError, TypeError):
        return text[:MAX_MESSAGE]


@asynccontextmanager
async def open_api(
    kubeconfig: str | None, metrics: Metrics, timeout_seconds: float
) -> AsyncIterator[KubeApi]:
    """Open a connection pool to the API server."""
    configuration = await load_configuration(kubeconfig)
    async with ApiClient(configuration) as client:
        yield KubeApi(client, metrics, timeout_seconds, kubeconfig)
