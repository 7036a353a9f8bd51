"""The only I/O of the plugin: requests to the API server, as the kubeconfig's user."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from specdecode_operator.objects.kinds import Manifest, ResourceKind
from specdecode_operator.plugin.errors import PluginError, refusal, unreachable

PAGE = 500
TIMEOUT_S = 15.0
MAX_MESSAGE = 400


@asynccontextmanager
async def connect(kubeconfig: str | None, context: str | None) -> AsyncIterator["Reader"]:
    """Open a connection as kubectl would: a named file, $KUBECONFIG, ~/.kube/config, or the pod.

    Raises:
        PluginError: when there is no such file or context.
    """
    configuration = Configuration()
    paths = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    is_there = any(os.path.exists(os.path.expanduser(each)) for each in paths.split(os.pathsep))
    if not is_there and kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
        config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
        namespace, user = _own_namespace(), "this pod's account"
    elif not is_there:
        raise PluginError(f"no cluster: there is no file {paths}; name one with --kubeconfig")
    else:
        namespace, user = await _load(configuration, paths, context)
    async with ApiClient(configuration) as client:
        yield Reader(client, namespace, user)


class Reader:
    """Reads, and sends the changes that a command makes.

    `namespace` is that of the context, `user` is the user's name in messages.
    """

    def __init__(self, client: ApiClient, namespace: str, user: str) -> None:
        self._client = client
        self.namespace = namespace
        self.user = user

    async def items(
        self, kind: ResourceKind, namespace: str | None, **query: str
    ) -> list[Manifest]:
        """All objects of a kind that match a query (labelSelector, fieldSelector)."""
        found: list[Manifest] = []
        query["limit"] = str(PAGE)
        head = {"apiVersion": kind.api_version, "kind": kind.kind}
        what = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
        while True:
            page = json.loads(await self.text(kind.path(namespace), what, **query))
            found += [head | item for item in page.get("items") or ()]
            if not (page.get("metadata") or {}).get("continue"):
                return found
            query["continue"] = page["metadata"]["continue"]

    async def text(self, path: str, what: str, **query: str) -> str:
        """The body of a response.

        Raises:
            PluginError: there is no response, or its status is an error.
        """
        try:
            response = await self._open(path, query, aiohttp.ClientTimeout(total=TIMEOUT_S))
            body: bytes = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(error) from error
        text = body.decode(errors="replace")
        if response.status >= HTTPStatus.BAD_REQUEST:
            raise refusal(response.status, _message(text), what, self.user)
        return text

    async def send(
        self,
        method: str,
        path: str,
        what: str,
        body: Manifest,
        content_type: str = "application/json",
        **query: str,
    ) -> Manifest:
        """Create or change an object; returns it as stored.

        Raises:
            PluginError: there is no response, or its status is an error.
        """
        query.setdefault("fieldManager", "kubectl-specdecode")
        try:
            verb, url, headers, _, _ = await self._client.param_serialize(
                method,
                path,
                query_params=list(query.items()),
                header_params={"Accept": "application/json", "Content-Type": content_type},
                auth_settings=["BearerToken"],
            )
            response = await self._client.call_api(
                verb, url, headers, body, _request_timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)
            )
            text = (await response.read()).decode(errors="replace")  # type: ignore[no-untyped-call]
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(error) from error
        if response.status >= HTTPStatus.BAD_REQUEST:
            verb = {"POST": "create", "PUT": "update"}.get(method, "patch")
            raise refusal(response.status, _message(text), what, self.user, verb)
        stored: Manifest = json.loads(text)
        return stored

    async def lines(self, path: str, what: str, **query: str) -> AsyncIterator[str]:
        """The lines of a streamed response, without line ends."""
        patience = aiohttp.ClientTimeout(total=None, sock_connect=TIMEOUT_S)
        try:
            response = await self._open(path, query, patience)
            if response.status >= HTTPStatus.BAD_REQUEST:
                text = (await response.read()).decode(errors="replace")
                raise refusal(response.status, _message(text), what, self.user)
            async with response.response:
                async for line in response.response.content:
                    yield line.decode(errors="replace").rstrip("\r\n")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(error) from error

    async def _open(self, path: str, query: dict[str, str], timeout: aiohttp.ClientTimeout) -> Any:
        verb, url, headers, _, _ = await self._client.param_serialize(
            "GET", path, query_params=list(query.items()), auth_settings=["BearerToken"]
        )
        return await self._client.call_api(verb, url, headers, None, _request_timeout=timeout)

    def _unreachable(self, error: Exception) -> PluginError:
        return unreachable(self._client.configuration.host, str(error) or type(error).__name__)


async def _load(configuration: Configuration, paths: str, context: str | None) -> tuple[str, str]:
    """Read a kubeconfig; returns the namespace and the user of its context."""
    try:
        await config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=paths, context=context, client_configuration=configuration
        )
        contexts, active = config.list_kube_config_contexts(paths)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError, ValueError, TypeError) as error:
        raise PluginError(
            f"{paths}: {error}; `kubectl config get-contexts` lists what can be chosen"
        ) from error
    chosen = next((each for each in contexts if each["name"] == context), active)["context"]
    return chosen.get("namespace") or "default", f"user {chosen.get('user', 'of the kubeconfig')}"


def _own_namespace() -> str:
    path = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
    with open(path, encoding="utf-8") as file:
        return file.read().strip()


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["message"])[:MAX_MESSAGE]
    except (ValueError, KeyError, TypeError):
        return text.strip()[:MAX_MESSAGE]
