"""Chooses the engine pod that a command connects to, or states why there is none."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from specdecode_api import names
from specdecode_operator.objects import pods
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.plugin.diagnosis import PodLine, diagnose
from specdecode_operator.plugin.errors import PluginError


@dataclass(frozen=True, slots=True)
class EnginePod:
    """A ready engine pod, and what messages need of its resource."""

    namespace: str
    resource: str
    name: str
    port: int
    """That of the API."""
    wants_page: bool
    """Whether the spec of the resource has the page."""


def choose_engine(
    resource: Manifest, found: Sequence[Manifest], now: datetime, last: str | None = None
) -> EnginePod:
    """Choose a ready pod, of the current configuration if there is one.

    Args:
        last: the pod whose connection has just ended; any other ready one comes before it.

    Raises:
        PluginError: no pod is ready; the message has the reason.
    """
    metadata = resource["metadata"]
    wanted = (resource.get("status") or {}).get("configHash")
    ready = [each for each in found if pods.is_ready(each)]
    if not ready:
        raise _no_engine(resource, found, now)
    chosen = min(
        ready,
        key=lambda pod: (
            pod["metadata"]["name"] == last,
            pods.config_hash_of(pod) != wanted,
            pod["metadata"]["name"],
        ),
    )
    return EnginePod(
        namespace=metadata["namespace"],
        resource=metadata["name"],
        name=chosen["metadata"]["name"],
        port=container_port(chosen, names.ENGINE_PORT_NAME, names.ENGINE_PORT),
        wants_page=bool(((resource.get("spec") or {}).get("serving") or {}).get("page")),
    )


def container_port(pod: Manifest, name: str, default: int) -> int:
    """The container port of a pod with a name; else the default."""
    for container in pod["spec"]["containers"]:
        for port in container.get("ports") or ():
            if port.get("name") == name:
                return int(port["containerPort"])
    return default


def page_is_off(pod: EnginePod) -> PluginError:
    """Explain that an engine does not serve the page, and how to turn it on."""
    where = f"{names.SHORT_NAME} {pod.resource} -n {pod.namespace}"
    if pod.wants_page:
        return PluginError(
            f"pod {pod.name} was started without the page, though serving.page is true now; wait "
            f"for the rollout: kubectl specdecode status {pod.resource} -n {pod.namespace} -w"
        )
    return PluginError(
        f"pod {pod.name} does not serve the page: serving.page is false; kubectl patch {where} "
        """--type merge -p '{"spec":{"serving":{"page":true}}}' turns it on and replaces the """
        f"engine pods; kubectl specdecode chat {pod.resource} -n {pod.namespace} needs no page"
    )


def _no_engine(resource: Manifest, found: Sequence[Manifest], now: datetime) -> PluginError:
    metadata, spec = resource["metadata"], resource.get("spec") or {}
    name, namespace = metadata["name"], metadata["namespace"]
    if not found and spec.get("replicas", 1) == 0:
        scale = f"kubectl scale {names.SHORT_NAME} {name} -n {namespace} --replicas=1"
        return PluginError(f"{name} has no pods, because replicas is 0; {scale} starts an engine")
    diagnosis = diagnose(resource, found, (), now)
    reasons = [_state(each) for each in diagnosis.pods if each.why] or [
        *map(_state, diagnosis.pods[:1])
    ]
    words = [each for each in (diagnosis.headline, diagnosis.why, *reasons[:1]) if each]
    return PluginError(
        f"no engine pod of {name} is ready: {'; '.join(words)}; "
        f"kubectl specdecode status {name} -n {namespace} -w shows its progress"
    )


def _state(line: PodLine) -> str:
    why = f": {line.why}" if line.why else ""
    return f"pod {line.name} is {line.state}{why}"
