"""The operator's requests to the API server, with the verbs that `kinds` declares.

Objects stay plain JSON. Watching is Kopf's part.
"""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from specdecode_api import names
from specdecode_operator.cluster.kube_api import APPLY, KubeApi, KubeApiError, open_api
from specdecode_operator.cluster.metrics import Metrics
from specdecode_operator.objects.kinds import (
    BY_KIND,
    EVENT,
    LEASE,
    OPTIONAL,
    RESOURCE,
    TRIAL,
    Manifest,
    ResourceKind,
)

PAGE = 500


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
    async with open_api(kubeconfig, metrics, timeout_seconds) as api:
        yield Cluster(api)


class Cluster:
    """Requests for objects of the kinds that the operator knows."""

    def __init__(self, api: KubeApi) -> None:
        self.api = api

    async def pages(
        self, kind: ResourceKind, namespace: str | None, selector: str | None = None
    ) -> AsyncIterator[Page]:
        """All objects of a kind as of one version, page by page."""
        _check(kind.verbs, "list", kind)
        query = {"limit": str(PAGE)} | ({"labelSelector": selector} if selector else {})
        usual = (HTTPStatus.NOT_FOUND,) if kind in OPTIONAL else ()
        while True:
            path = kind.path(namespace)
            found = await self.api.request("GET", path, query, usual=usual, parse=read_list)
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
            return await self.api.request("GET", path, usual=(HTTPStatus.NOT_FOUND,))
        except KubeApiError as error:
            if error.code == HTTPStatus.NOT_FOUND:
                return None
            raise

    async def create(self, lease: Manifest) -> Manifest:
        """Create a Lease; a conflict means that another process created it."""
        _check(LEASE.verbs, "create", LEASE)
        path = LEASE.path(lease["metadata"]["namespace"])
        return await self.api.request("POST", path, {}, lease, usual=(HTTPStatus.CONFLICT,))

    async def replace(self, lease: Manifest) -> Manifest:
        """Replace the version of a Lease that was read; a conflict means that it has changed."""
        _check(LEASE.verbs, "update", LEASE)
        path = LEASE.path(lease["metadata"]["namespace"], lease["metadata"]["name"])
        return await self.api.request("PUT", path, {}, lease, usual=(HTTPStatus.CONFLICT,))

    async def apply(
        self,
        manifest: Manifest,
        *,
        force: bool,
        is_trial: bool = False,
        manager: str = names.FIELD_MANAGER,
    ) -> Manifest:
        """Write an owned object by server-side apply.

        With a `resourceVersion`, another stored version is a conflict.

        Args:
            force: take over fields from other managers; without it, the request fails with a
                conflict if an unowned object of that name was created meanwhile.
            is_trial: dry run; returns what would be stored.
            manager: of the fields; two writes of one manager never conflict.
        """
        kind = BY_KIND[manifest["kind"]]
        _check(kind.verbs, "patch", kind)
        _check(kind.verbs, "create", kind)
        metadata = manifest["metadata"]
        query = {"fieldManager": manager, "force": "true" if force else "false"}
        if is_trial:
            query["dryRun"] = "All"
        path = kind.path(metadata["namespace"], metadata["name"])
        return await self.api.request("PATCH", path, query, manifest, APPLY)

    async def create_trial(self, trial: Manifest) -> Manifest:
        """Create a SpecDecodeTrial; a conflict means that one of this name exists."""
        _check(TRIAL.verbs, "create", TRIAL)
        path = TRIAL.path(trial["metadata"]["namespace"])
        return await self.api.request("POST", path, {}, trial, usual=(HTTPStatus.CONFLICT,))

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
        return await self.api.request("PATCH", path, query, body, APPLY)

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
        return await self.api.request("PATCH", path, query, body, APPLY, (HTTPStatus.CONFLICT,))

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
        return await self.api.request("PATCH", path, query, body, APPLY, (HTTPStatus.CONFLICT,))

    async def delete(self, manifest: Manifest) -> None:
        """Delete exactly this object; does nothing if it no longer exists."""
        kind = BY_KIND[manifest["kind"]]
        _check(kind.verbs, "delete", kind)
        metadata = manifest["metadata"]
        body = {"preconditions": {"uid": metadata["uid"]}, "propagationPolicy": "Background"}
        usual = (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)
        try:
            path = kind.path(metadata["namespace"], metadata["name"])
            await self.api.request("DELETE", path, {}, body, usual=usual)
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
        found = await self.api.request("GET", EVENT.path(metadata["namespace"]), query)
        return list(found.get("items") or ())

    async def post_event(self, event: Manifest) -> None:
        """Post an event once; its name is derived from its content."""
        _check(EVENT.verbs, "create", EVENT)
        path = EVENT.path(event["metadata"]["namespace"])
        try:
            await self.api.request("POST", path, {}, event, usual=(HTTPStatus.CONFLICT,))
        except KubeApiError as error:
            if error.code != HTTPStatus.CONFLICT:
                raise

    async def served_kinds(self, group: str, version: str) -> list[str]:
        """Plural names and sub-resources that a group serves; needs no permission."""
        found = await self.api.request("GET", f"/apis/{group}/{version}")
        return [str(each["name"]) for each in found["resources"]]

    async def served_schema(self) -> Manifest | None:
        """The published schema of the custom resource, or None; every account may read it."""
        path = f"/openapi/v3/apis/{RESOURCE.group}/{RESOURCE.version}"
        document = await self.api.request("GET", path)
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
        answer = await self.api.request("POST", path, {}, review)
        return bool(answer["status"]["allowed"])

    async def try_create(self, manifest: Manifest) -> Manifest:
        """Create a custom resource in a dry run.

        A refusal is not counted as a failure: rules and policies of the cluster are tried out.
        """
        _check(RESOURCE.verbs, "create", RESOURCE)
        path = RESOURCE.path(manifest["metadata"]["namespace"])
        usual = (HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN, HTTPStatus.UNPROCESSABLE_ENTITY)
        return await self.api.request("POST", path, {"dryRun": "All"}, manifest, usual=usual)


def _check(verbs: tuple[str, ...], verb: str, kind: ResourceKind) -> None:
    """Reject undeclared verbs: the chart grants only the declared ones."""
    assert verb in verbs, f"declare {verb} on {kind.plural} in kinds.py"


# Parses lists of the API server item by item.
#
# `json.loads` of 500 pods takes 50 ms, during which no other thread runs. Called in a thread, these
# functions let the event loop continue after each item.

_ITEMS = re.compile(r'"items"\s*:\s*\[\s*')
"""The first match is the list's own field: quotes in strings are escaped, and what the API server
writes before it, `ListMeta`, has no such field."""
_NEXT = re.compile(r"\s*(,|\])\s*")


def read_list(text: str) -> Manifest:
    """Parse a list as `json.loads` does.

    Raises:
        ValueError: it is not valid JSON.
    """
    begin = _ITEMS.search(text)
    if begin is None:
        whole: Manifest = json.loads(text)
        return whole
    items, end = _read_items(text, begin.end())
    rest: Manifest = json.loads(f'{text[: begin.start()]}"items":[]{text[end:]}')
    return rest | {"items": items}


def _read_items(text: str, at: int) -> tuple[list[Any], int]:
    """The items from a position after the opening bracket, and where the list ends."""
    if text[at : at + 1] == "]":
        return [], at + 1
    items, decode = [], json.JSONDecoder().raw_decode
    while True:
        item, at = decode(text, at)
        items.append(item)
        separator = _NEXT.match(text, at)
        if separator is None:
            raise ValueError(f"the list has no comma or bracket at character {at}")
        at = separator.end()
        if separator[1] == "]":
            return items, at
