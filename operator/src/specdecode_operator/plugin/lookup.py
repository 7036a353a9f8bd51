"""Finds what a command is about: resources, and the pods and events that belong to one."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

from pydantic import ValidationError

from specdecode_api import names
from specdecode_api.report import Progress
from specdecode_operator.objects.kinds import (
    CONTROLLER_REVISION,
    DEPLOYMENT,
    EVENT,
    POD,
    RESOURCE,
    TRIAL,
    Manifest,
)
from specdecode_operator.owned.labels import selector_text, service_selector
from specdecode_operator.plugin.engine_pod import container_port
from specdecode_operator.plugin.errors import PluginError, nobody
from specdecode_operator.plugin.reach import Reader

MAX_PODS_WITH_EVENTS = 20
PROGRESS_S = 3.0


@dataclass(frozen=True, slots=True)
class Scope:
    """Which resources a command is about."""

    name: str | None
    namespace: str | None
    """None stands for that of the context."""
    is_everywhere: bool = False


async def resources(reader: Reader, scope: Scope) -> list[Manifest]:
    """The resources of a scope, in order.

    Raises:
        PluginError: when the named one is not there, or may not be read.
    """
    namespace = None if scope.is_everywhere else scope.namespace or reader.namespace
    try:
        found = await reader.items(RESOURCE, namespace)
    except PluginError as error:
        # Who may read some by name need not be allowed to list them all.
        if error.code != HTTPStatus.FORBIDDEN or scope.name is None:
            raise
        found = await reader.items(RESOURCE, namespace, fieldSelector=f"metadata.name={scope.name}")
    found.sort(key=lambda each: (each["metadata"]["namespace"], each["metadata"]["name"]))
    if scope.name is None:
        return found
    chosen = [each for each in found if each["metadata"]["name"] == scope.name]
    if not chosen:
        others = [str(each["metadata"]["name"]) for each in found]
        raise nobody(scope.name, namespace or "any", others)
    return chosen


async def pods(reader: Reader, resource: Manifest) -> list[Manifest]:
    """The engine pods of a resource, by name."""
    metadata = resource["metadata"]
    selector = selector_text(service_selector(metadata["name"]))
    found = await reader.items(POD, metadata["namespace"], labelSelector=selector)
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


async def events(reader: Reader, resource: Manifest, found: Sequence[Manifest]) -> list[Manifest]:
    """Events about a resource, its Deployment and its pods."""
    namespace, name = resource["metadata"]["namespace"], resource["metadata"]["name"]
    subjects = [(RESOURCE.kind, name), (DEPLOYMENT.kind, name)]
    subjects += [(POD.kind, each["metadata"]["name"]) for each in found[:MAX_PODS_WITH_EVENTS]]
    answers = await asyncio.gather(
        *(
            reader.items(
                EVENT,
                namespace,
                fieldSelector=f"involvedObject.kind={kind},involvedObject.name={subject}",
            )
            for kind, subject in subjects
        )
    )
    return [event for answer in answers for event in answer]


async def revisions(reader: Reader, resource: Manifest) -> list[Manifest]:
    """The ControllerRevisions of a resource."""
    metadata = resource["metadata"]
    selector = (
        f"{names.LABEL_MANAGED_BY}={names.FIELD_MANAGER},"
        f"{names.LABEL_DEPLOYMENT}={metadata['name']}"
    )
    return await reader.items(CONTROLLER_REVISION, metadata["namespace"], labelSelector=selector)


async def progress(reader: Reader, pod: Manifest) -> Progress | None:
    """What a pod does before it serves, read through the API server; None if it does not answer.

    Raises:
        PluginError: reading is not permitted, or the API server does not answer.
    """
    try:
        async with asyncio.timeout(PROGRESS_S):
            text = await _engine_text(reader, pod, names.PATH_PROGRESS)
        return Progress.model_validate_json(text)
    except (TimeoutError, ValidationError):
        return None
    except PluginError as error:
        if error.code in (None, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise
        return None  # its container starts, or is of an earlier release


async def trial(reader: Reader, resource: Manifest) -> Manifest | None:
    """The running trial of a resource."""
    name = (resource.get("status") or {}).get("activeTrial")
    if not name:
        return None
    namespace = resource["metadata"]["namespace"]
    found = await reader.items(TRIAL, namespace, fieldSelector=f"metadata.name={name}")
    return found[0] if found else None


async def engine_metrics(reader: Reader, pod: Manifest) -> str:
    """The metrics that an engine exports, read through the API server.

    Raises:
        PluginError: the engine or the API server returned an error.
    """
    return await _engine_text(reader, pod, names.PATH_METRICS)


async def _engine_text(reader: Reader, pod: Manifest, engine_path: str) -> str:
    """The response of a pod's management port."""
    name = pod["metadata"]["name"]
    path = POD.path(pod["metadata"]["namespace"], name)
    port = container_port(pod, names.MANAGEMENT_PORT_NAME, names.MANAGEMENT_PORT)
    path = f"{path}:{port}/proxy{engine_path}"
    return await reader.text(path, f"pods/proxy of {name}")
