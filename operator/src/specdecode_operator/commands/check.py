"""Checks an installation from inside the cluster; `helm test` runs it."""

import asyncio
from dataclasses import dataclass
from http import HTTPStatus

import aiohttp

from specdecode_api import names
from specdecode_operator.cluster.cluster import Cluster, connect
from specdecode_operator.cluster.kube_api import KubeApiError
from specdecode_operator.cluster.metrics import Metrics
from specdecode_operator.objects.kinds import RESOURCE, TRIAL, Manifest
from specdecode_operator.settings import version
from specdecode_operator.status import served

TIMEOUT_S = 10.0
POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class Finding:
    """One check and its result."""

    subject: str
    problem: str | None = None

    @property
    def is_good(self) -> bool:
        """Whether the check succeeded."""
        return self.problem is None

    def __str__(self) -> str:
        return f"{'ok  ' if self.is_good else 'FAIL'} {self.subject}" + (
            f": {self.problem}" if self.problem else ""
        )


async def check(kubeconfig: str | None, namespace: str, health_url: str | None) -> list[Finding]:
    """Check the CRD, its validation by the API server, and the operator."""
    async with connect(kubeconfig, Metrics(version()), TIMEOUT_S) as cluster:
        findings = [
            await _definition(cluster),
            await _schema(cluster),
            await _good_resource(cluster, namespace),
            await _bad_resource(cluster, namespace),
        ]
    if health_url is not None:
        findings.append(await _health(health_url))
    return findings


async def _definition(cluster: Cluster) -> Finding:
    subject = (
        f"the API server serves {RESOURCE.plural}.{RESOURCE.group} with status and scale, "
        f"and {TRIAL.plural} with status"
    )
    try:
        found = await cluster.served_kinds(RESOURCE.group, RESOURCE.version)
    except KubeApiError as error:
        return Finding(subject, f"{error}; install the chart with crds.install=true")
    wanted = [
        *(f"{RESOURCE.plural}{part}" for part in ("", "/status", "/scale")),
        *(f"{TRIAL.plural}{part}" for part in ("", "/status")),
    ]
    missing = [each for each in wanted if each not in found]
    return Finding(subject, f"missing: {', '.join(missing)}" if missing else None)


async def _schema(cluster: Cluster) -> Finding:
    subject = "the CRD in the cluster has every field of this operator"
    try:
        found = await _published_schema(cluster)
    except KubeApiError as error:
        return Finding(subject, str(error))
    if found is None:
        return Finding(subject, "the API server publishes no schema for it")
    lacking = tuple(served.lacks(served.own_schema(), found))
    return Finding(subject, served.sentence(lacking) if lacking else None)


async def _published_schema(cluster: Cluster) -> Manifest | None:
    """Wait for the schema: the API server publishes it seconds after the CRD is established."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + TIMEOUT_S
    while True:
        is_last = loop.time() >= deadline
        try:
            found = await cluster.served_schema()
        except KubeApiError as error:
            if is_last or error.code != HTTPStatus.NOT_FOUND:
                raise
            found = None
        if found is not None or is_last:
            return found
        await asyncio.sleep(POLL_S)


async def _good_resource(cluster: Cluster, namespace: str) -> Finding:
    subject = "a custom resource is accepted, with the default of replicas alone (dry run)"
    try:
        created = await cluster.try_create(_resource(namespace, {}))
    except KubeApiError as error:
        return Finding(subject, str(error))
    is_as_written = created["spec"].keys() == {"model", "replicas"}
    return Finding(subject, None if is_as_written else f"it is stored as {created['spec']}")


async def _bad_resource(cluster: Cluster, namespace: str) -> Finding:
    subject = "a custom resource with an invalid pageSize is rejected (dry run)"
    try:
        await cluster.try_create(_resource(namespace, {"pageSize": 3}))
    except KubeApiError as error:
        return Finding(subject, None if error.code == 422 else str(error))
    return Finding(subject, "it was accepted; the CRD in the cluster is not that of this chart")


async def _health(url: str) -> Finding:
    subject = f"the operator responds at {url}"
    try:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as http, http.get(url) as response:
            status = response.status
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        return Finding(subject, f"{type(error).__name__}: {error}")
    return Finding(subject, None if status == HTTPStatus.OK else f"{status}")


def _resource(namespace: str, more: Manifest) -> Manifest:
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "installation-check", "namespace": namespace},
        "spec": {"model": {"uri": "pvc://installation-check/model"}, **more},
    }
