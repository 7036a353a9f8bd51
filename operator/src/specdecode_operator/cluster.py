"""The only Kubernetes I/O of the operator: list, get, apply, delete, post an event.

The official client carries the requests; objects stay plain JSON. Watching is Kopf's part.
"""

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from specdecode_api import names
from specdecode_operator.kinds import (
    BY_KIND,
    EVENT,
    LEASE,
    RESOURCE,
    TRIAL,
    Manifest,
    ResourceKind,
)
from specdecode_operator.lists import read_list
from specdecode_operator.metrics import Metrics

log = logging.getLogger(__name__)

PAGE = 500
MAX_MESSAGE = 800
MAX_INLINE_CHARS = 64 * 1024
"""Longer responses are parsed in a thread: the event loop must not stand still for milliseconds."""
_UNTYPED = "failed to create typed patch object"
"""Message of server-side apply for an unknown field, or a value of another type."""
_APPLY = "application/apply-patch+yaml"
_JSON = "application/json"


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


@dataclass(frozen=True, slots=True)
class Page:
    """Some objects of a list, and the version of the whole list."""

    items: list[Manifest]
    resource_version: str


@asynccontextmanager
async def connect(
    kubeconfig: str | None, metrics: Metrics, timeout_seconds: float
) -> AsyncIterator["Cluster"]:
    """Open a connection with the kubeconfig, or as the pod's service account."""
    configuration = await load_configuration(kubeconfig)
    async with ApiClient(configuration) as client:
        yield Cluster(client, metrics, timeout_seconds, kubeconfig)


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


class Cluster:
    """Requests to the API server, counted, with verbs that `kinds` declares."""

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

    async def pages(
        self, kind: ResourceKind, namespace: str | None, selector: str | None = None
    ) -> AsyncIterator[Page]:
        """All objects of a kind as of one version, page by page."""
        _check(kind.verbs, "list", kind)
        query = {"limit": str(PAGE)} | ({"labelSelector": selector} if selector else {})
        while True:
            text = await self._text("GET", kind.path(namespace), query)
            found = await _parsed(read_list, text)
            metadata = found.get("metadata") or {}
            # Items of a list have no apiVersion and kind.
            head = {"apiVersion": kind.api_version, "kind": kind.kind}
            items = [head | item for item in found.get("items") or ()]
            yield Page(items, metadata["resourceVersion"])
            if not metadata.get("continue"):
                return
            query["continue"] = metadata["continue"]

    async def get(self, kind: ResourceKind, namespace: str, name: str) -> Manifest | None:
        """One object, or None."""
        _check(kind.verbs, "get", kind)
        try:
            path = kind.path(namespace, name)
            return await self._request("GET", path, usual=(HTTPStatus.NOT_FOUND,))
        except KubeApiError as error:
            if error.code == HTTPStatus.NOT_FOUND:
                return None
            raise

    async def create(self, lease: Manifest) -> Manifest:
        """Create a Lease; a conflict means that another process created it."""
        _check(LEASE.verbs, "create", LEASE)
        path = LEASE.path(lease["metadata"]["namespace"])
        return await self._request("POST", path, {}, lease, usual=(HTTPStatus.CONFLICT,))

    async def replace(self, lease: Manifest) -> Manifest:
        """Replace the version of a Lease that was read; a conflict means that it has changed."""
        _check(LEASE.verbs, "update", LEASE)
        path = LEASE.path(lease["metadata"]["namespace"], lease["metadata"]["name"])
        return await self._request("PUT", path, {}, lease, usual=(HTTPStatus.CONFLICT,))

    async def apply(self, manifest: Manifest, *, force: bool, is_trial: bool = False) -> Manifest:
        """Write an owned object by server-side apply.

        Args:
            force: take over fields from other managers; without it, the request fails with a
                conflict if an unowned object of that name was created meanwhile.
            is_trial: dry run; returns what would be stored.
        """
        kind = BY_KIND[manifest["kind"]]
        _check(kind.verbs, "patch", kind)
        _check(kind.verbs, "create", kind)
        metadata = manifest["metadata"]
        query = {"fieldManager": names.FIELD_MANAGER, "force": "true" if force else "false"}
        if is_trial:
            query["dryRun"] = "All"
        path = kind.path(metadata["namespace"], metadata["name"])
        return await self._request("PATCH", path, query, manifest, _APPLY)

    async def create_trial(self, trial: Manifest) -> Manifest:
        """Create a SpecDecodeTrial; a conflict means that one of this name exists."""
        _check(TRIAL.verbs, "create", TRIAL)
        path = TRIAL.path(trial["metadata"]["namespace"])
        return await self._request("POST", path, {}, trial, usual=(HTTPStatus.CONFLICT,))

    async def adopt_trial(self, trial: Manifest, owned: Manifest) -> Manifest:
        """Set labels and owner references of a trial that a user created.

        Args:
            owned: metadata with `labels` and `ownerReferences`.
        """
        _check(TRIAL.verbs, "patch", TRIAL)
        metadata = {field: trial["metadata"][field] for field in ("name", "namespace", "uid")}
        body = {
            "apiVersion": TRIAL.api_version,
            "kind": TRIAL.kind,
            "metadata": metadata | {key: owned[key] for key in ("labels", "ownerReferences")},
        }
        query = {"fieldManager": names.FIELD_MANAGER, "force": "true"}
        path = TRIAL.path(metadata["namespace"], metadata["name"])
        return await self._request("PATCH", path, query, body, _APPLY)

    async def apply_trial_status(self, trial: Manifest, status: Manifest) -> Manifest:
        """Write the whole status of this version of a trial.

        A conflict means that the trial has changed since it was observed: observe it again.
        """
        _check(TRIAL.status_verbs, "patch", TRIAL)
        fields = ("name", "namespace", "uid", "resourceVersion")
        metadata = {field: trial["metadata"][field] for field in fields}
        body = {
            "apiVersion": TRIAL.api_version,
            "kind": TRIAL.kind,
            "metadata": metadata,
            "status": status,
        }
        query = {"fieldManager": names.STATUS_FIELD_MANAGER, "force": "true"}
        path = TRIAL.path(metadata["namespace"], metadata["name"]) + "/status"
        return await self._request("PATCH", path, query, body, _APPLY, (HTTPStatus.CONFLICT,))

    async def apply_status(self, resource: Manifest, status: Manifest) -> Manifest:
        """Write the whole status of this version of a resource.

        A conflict means that the resource has changed since it was observed: observe it again.
        """
        _check(RESOURCE.status_verbs, "patch", RESOURCE)
        fields = ("name", "namespace", "resourceVersion")
        metadata = {field: resource["metadata"][field] for field in fields}
        body = {
            "apiVersion": RESOURCE.api_version,
            "kind": RESOURCE.kind,
            "metadata": metadata,
            "status": status,
        }
        query = {"fieldManager": names.STATUS_FIELD_MANAGER, "force": "true"}
        path = RESOURCE.path(metadata["namespace"], metadata["name"]) + "/status"
        return await self._request("PATCH", path, query, body, _APPLY, (HTTPStatus.CONFLICT,))

    async def delete(self, manifest: Manifest) -> None:
        """Delete exactly this object; does nothing if it no longer exists."""
        kind = BY_KIND[manifest["kind"]]
        _check(kind.verbs, "delete", kind)
        metadata = manifest["metadata"]
        body = {"preconditions": {"uid": metadata["uid"]}, "propagationPolicy": "Background"}
        usual = (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)
        try:
            path = kind.path(metadata["namespace"], metadata["name"])
            await self._request("DELETE", path, {}, body, usual=usual)
        except KubeApiError as error:
            if error.code not in usual:
                raise

    async def events_about(self, pod: Manifest) -> list[Manifest]:
        """All events about a pod."""
        _check(EVENT.verbs, "list", EVENT)
        metadata = pod["metadata"]
        fields = {
            "involvedObject.kind": pod["kind"],
            "involvedObject.namespace": metadata["namespace"],
            "involvedObject.uid": metadata["uid"],
        }
        query = {"fieldSelector": ",".join(f"{field}={text}" for field, text in fields.items())}
        found = await self._request("GET", EVENT.path(metadata["namespace"]), query)
        return list(found.get("items") or ())

    async def post_event(self, event: Manifest) -> None:
        """Post an event once; its name is derived from its content."""
        _check(EVENT.verbs, "create", EVENT)
        path = EVENT.path(event["metadata"]["namespace"])
        try:
            await self._request("POST", path, {}, event, usual=(HTTPStatus.CONFLICT,))
        except KubeApiError as error:
            if error.code != HTTPStatus.CONFLICT:
                raise

    async def served_kinds(self, group: str, version: str) -> list[str]:
        """Plural names and sub-resources that a group serves; needs no permission."""
        found = await self._request("GET", f"/apis/{group}/{version}")
        return [str(each["name"]) for each in found["resources"]]

    async def served_schema(self) -> Manifest | None:
        """The published schema of the custom resource, or None; every account may read it."""
        path = f"/openapi/v3/apis/{RESOURCE.group}/{RESOURCE.version}"
        document = await self._request("GET", path)
        wanted = {"group": RESOURCE.group, "version": RESOURCE.version, "kind": RESOURCE.kind}
        for schema in document.get("components", {}).get("schemas", {}).values():
            if wanted in schema.get("x-kubernetes-group-version-kind", ()):
                return dict(schema)
        return None

    async def may(self, attributes: dict[str, str]) -> bool:
        """Whether this account has a permission, by the attributes of an access review."""
        group = "authorization.k8s.io/v1"
        review = {
            "apiVersion": group,
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        path = f"/apis/{group}/selfsubjectaccessreviews"
        answer = await self._request("POST", path, {}, review)
        return bool(answer["status"]["allowed"])

    async def try_create(self, manifest: Manifest) -> Manifest:
        """Create a custom resource in a dry run."""
        path = RESOURCE.path(manifest["metadata"]["namespace"])
        return await self._request("POST", path, {"dryRun": "All"}, manifest)

    async def _request(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: Manifest | None = None,
        content_type: str = _JSON,
        usual: tuple[int, ...] = (),
    ) -> Manifest:
        """Send a request; errors with a `usual` code are expected and not counted."""
        return await _parsed(
            json.loads, await self._text(method, path, query, body, content_type, usual)
        )

    async def _text(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: Manifest | None = None,
        content_type: str = _JSON,
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
                header_params={"Accept": _JSON, "Content-Type": content_type},
                auth_settings=["BearerToken"],
            )
            response = await self._client.call_api(
                verb, url, headers, body, _request_timeout=self._timeout_seconds
            )
            text = (await response.read()).decode()  # type: ignore[no-untyped-call]
            return response.status, text
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._metrics.api_errors.labels(code="unreachable").inc()
            raise KubeApiError(0, f"{method} {path}: {error or type(error).__name__}") from error


async def _parsed(parse: Callable[[str], Manifest], text: str) -> Manifest:
    if len(text) <= MAX_INLINE_CHARS:
        return parse(text)
    return await asyncio.to_thread(parse, text)


def _check(verbs: tuple[str, ...], verb: str, kind: ResourceKind) -> None:
    """Reject undeclared verbs: the chart grants only the declared ones."""
    assert verb in verbs, f"declare {verb} on {kind.plural} in kinds.py"


def _message(text: str) -> str:
    try:
        answer: Any = json.loads(text)
        return str(answer["message"])[:MAX_MESSAGE]
    except (ValueError, KeyError, TypeError):
        return text[:MAX_MESSAGE]
