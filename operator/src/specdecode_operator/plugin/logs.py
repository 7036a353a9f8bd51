"""`kubectl specdecode logs`: lines of all engine pods of a resource, prefixed by pod name."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from specdecode_api import names
from specdecode_operator.objects.kinds import POD, Manifest
from specdecode_operator.plugin import lookup
from specdecode_operator.plugin.diagnosis import pod_state
from specdecode_operator.plugin.errors import PluginError
from specdecode_operator.plugin.lookup import Scope
from specdecode_operator.plugin.reach import Reader

LOOK_AGAIN_S = 2.0

Write = Callable[[str, str], None]
"""Takes a pod's short name and a line."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Options of the log request."""

    follow: bool
    previous: bool
    tail_lines: int
    """Lines of each pod; -1 for all."""
    since_s: int | None

    def query(self) -> dict[str, str]:
        """Query parameters of the API server."""
        query = {"container": names.ENGINE_CONTAINER, "follow": str(self.follow).lower()}
        if self.previous:
            query["previous"] = "true"
        if self.tail_lines >= 0:
            query["tailLines"] = str(self.tail_lines)
        if self.since_s is not None:
            query["sinceSeconds"] = str(self.since_s)
        return query


async def logs(reader: Reader, scope: Scope, wanted: Wanted, write: Write) -> None:
    """Write the lines of every engine; when following, also of new pods, until interrupted.

    Raises:
        PluginError: the resource does not exist, has no pods, or no pod returns lines.
    """
    (resource,) = await lookup.resources(reader, scope)
    found = await lookup.pods(reader, resource)
    if not found and not wanted.follow:
        raise PluginError(
            f"{resource['metadata']['name']} has no pods; `kubectl specdecode status "
            f"{resource['metadata']['name']} -n {resource['metadata']['namespace']}` shows why"
        )
    if wanted.follow:
        await _follow(reader, resource, wanted, write)
        return
    outcomes = await asyncio.gather(*(_copy(reader, pod, wanted, write) for pod in found))
    if not any(outcomes):
        raise PluginError("no pod returned log lines")


async def _follow(reader: Reader, resource: Manifest, wanted: Wanted, write: Write) -> None:
    running: dict[tuple[str, int], asyncio.Task[bool]] = {}
    async with asyncio.TaskGroup() as group:
        while True:
            for pod in await lookup.pods(reader, resource):
                run = (str(pod["metadata"]["uid"]), _starts(pod))
                if run not in running and _has_lines(pod):
                    running[run] = group.create_task(_copy(reader, pod, wanted, write))
            await asyncio.sleep(LOOK_AGAIN_S)


async def _copy(reader: Reader, pod: Manifest, wanted: Wanted, write: Write) -> bool:
    """Copy the lines of one pod; a pod without lines gets a line with its state."""
    metadata, lines = pod["metadata"], 0
    path, short = POD.path(metadata["namespace"], metadata["name"]) + "/log", short_name(pod)
    try:
        async for line in reader.lines(path, f"pods/log of {metadata['name']}", **wanted.query()):
            write(short, line)
            lines += 1
    except PluginError as error:
        write(short, f"({pod_state(pod)}: {error})")
        return False
    if not lines:
        write(short, f"({pod_state(pod)}: no lines)")
    return lines > 0


def short_name(pod: Manifest) -> str:
    """A pod's name without the name of its resource."""
    owner = (pod["metadata"].get("labels") or {}).get(names.LABEL_DEPLOYMENT, "")
    return str(pod["metadata"]["name"]).removeprefix(f"{owner}-")


def _starts(pod: Manifest) -> int:
    return int(_engine_state(pod).get("restartCount", 0))


def _has_lines(pod: Manifest) -> bool:
    """Whether its engine has started; before that there is no log to follow."""
    engine = _engine_state(pod)
    return "waiting" not in (engine.get("state") or {"waiting": {}})


def _engine_state(pod: Manifest) -> Manifest:
    found = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((each for each in found if each["name"] == names.ENGINE_CONTAINER), {})
