"""Lists and watches the EndpointSlices of one Service; the only module that uses Kubernetes.

The official client carries the requests, in its asyncio form, as in the operator.
"""

import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final

from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration, DiscoveryV1Api
from kubernetes.aio.client.exceptions import ApiException

WATCH_SECONDS: Final = 240
REQUEST_SECONDS: Final = 30

SliceEvent = tuple[str, Mapping[str, Any]]
"""LIST, ADDED, MODIFIED, DELETED or SYNCED, and a slice; SYNCED ends the objects of the list."""


class ListExpired(Exception):
    """The watch is to be begun with a list again."""


@asynccontextmanager
async def open_watch(
    kubeconfig: str | None, namespace: str, service: str
) -> AsyncIterator[AsyncIterator[SliceEvent]]:
    """Open a list and watch with the kubeconfig, or as the pod's service account."""
    configuration = Configuration()
    configuration.client_session_kwargs = {"trust_env": False}
    if kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
        config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
    else:
        await config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=kubeconfig, client_configuration=configuration
        )
    async with ApiClient(configuration) as client:
        yield _events(DiscoveryV1Api(client), namespace, service)


async def _events(api: DiscoveryV1Api, namespace: str, service: str) -> AsyncIterator[SliceEvent]:
    selector = f"kubernetes.io/service-name={service}"
    response = await api.list_namespaced_endpoint_slice_without_preload_content(
        namespace,
        label_selector=selector,
        _request_timeout=REQUEST_SECONDS,
    )
    found = json.loads(await response.text())
    if response.status != HTTPStatus.OK:
        raise ApiException(response.status, found.get("message"))
    for item in found.get("items") or ():
        yield "LIST", item
    yield "SYNCED", {}
    version = found["metadata"]["resourceVersion"]
    while True:
        async for kind, manifest in _watch(api, namespace, selector, version):
            version = manifest["metadata"]["resourceVersion"]
            if kind != "BOOKMARK":
                yield kind, manifest


async def _watch(
    api: DiscoveryV1Api, namespace: str, selector: str, version: str
) -> AsyncIterator[SliceEvent]:
    response = await api.list_namespaced_endpoint_slice_without_preload_content(
        namespace,
        label_selector=selector,
        resource_version=version,
        allow_watch_bookmarks=True,
        watch=True,
        timeout_seconds=WATCH_SECONDS,
        _request_timeout=WATCH_SECONDS + REQUEST_SECONDS,
    )
    if response.status == HTTPStatus.GONE:
        raise ListExpired
    if response.status != HTTPStatus.OK:
        raise ApiException(response.status, await response.text())
    buffer = b""
    async for data in response.content.iter_any():  # lines may be longer than aiohttp reads them
        *lines, buffer = (buffer + data).split(b"\n")
        for event in map(json.loads, filter(None, lines)):
            if event["type"] == "ERROR":
                raise ListExpired
            yield event["type"], event["object"]
