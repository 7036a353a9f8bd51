"""Requests of the bench itself, as an administrator, few instructions each."""

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import aiohttp

from localnode.controlplane import ApiServer
from specdecode_operator.objects.kinds import BY_KIND, Manifest, ResourceKind

_METADATA = "application/json;as=PartialObjectMetadata{list};g=meta.k8s.io;v=v1"


class Api:
    """Creates, applies, removes, lists and watches."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def create(self, kind: ResourceKind, manifest: Manifest) -> Manifest:
        """Create an object."""
        path = kind.path(manifest["metadata"].get("namespace"))
        async with self._session.post(path, json=manifest) as answer:
            return await _body(answer)

    async def find(self, kind: ResourceKind, namespace: str, name: str) -> Manifest | None:
        """An object; None where there is none."""
        async with self._session.get(kind.path(namespace, name)) as answer:
            return None if answer.status == HTTPStatus.NOT_FOUND else await _body(answer)

    async def apply(self, manifest: Manifest, sub: str = "") -> Manifest:
        """Write an object, or a part of it, by server-side apply."""
        metadata = manifest["metadata"]
        path = BY_KIND[manifest["kind"]].path(metadata["namespace"], metadata["name"]) + sub
        head = {"Content-Type": "application/apply-patch+yaml"}
        query = {"fieldManager": "bench", "force": "true"}
        data = json.dumps(manifest)
        async with self._session.patch(path, data=data, params=query, headers=head) as answer:
            return await _body(answer)

    async def clear(self, kind: ResourceKind, namespace: str) -> None:
        """Remove every object of a kind, one by one: not every kind takes fewer requests."""
        for name in await self.versions(kind, namespace):
            async with self._session.delete(kind.path(namespace, name)) as answer:
                if answer.status != HTTPStatus.NOT_FOUND:  # the garbage collector was quicker
                    await _body(answer)

    async def versions(self, kind: ResourceKind, namespace: str) -> dict[str, str]:
        """Name to version of all objects of a kind."""
        head = {"Accept": _METADATA.format(list="List")}
        async with self._session.get(kind.path(namespace), headers=head) as answer:
            items = (await _body(answer))["items"] or ()
        return {e["metadata"]["name"]: e["metadata"]["resourceVersion"] for e in items}

    async def watch(
        self, kind: ResourceKind, namespace: str, *, whole: bool
    ) -> AsyncIterator[tuple[str, Manifest]]:
        """Events from now on: their type and object, of which only metadata unless `whole`."""
        head = {"Accept": "application/json" if whole else _METADATA.format(list="")}
        query = {"watch": "true"}
        timeout = aiohttp.ClientTimeout(total=None)
        path = kind.path(namespace)
        async with self._session.get(path, headers=head, params=query, timeout=timeout) as answer:
            if answer.status != HTTPStatus.OK:
                await _body(answer)
            async for line in answer.content:
                event = json.loads(line)
                yield event["type"], event["object"]


async def _body(answer: aiohttp.ClientResponse) -> Manifest:
    text = await answer.text()
    if answer.status >= 400:
        raise RuntimeError(f"{answer.method} {answer.url}: {answer.status} {text[:400]}")
    found: Any = json.loads(text)
    return dict(found)


@asynccontextmanager
async def connect(server: ApiServer) -> AsyncIterator[Api]:
    """Open connections to a private API server."""
    tls = ssl.create_default_context(cafile=str(server.authority_file))
    connector = aiohttp.TCPConnector(ssl=tls, limit=0)
    headers = {"Authorization": f"Bearer {server.admin_token}"}
    async with aiohttp.ClientSession(
        server.url, connector=connector, headers=headers, read_bufsize=2**21
    ) as session:
        yield Api(session)
