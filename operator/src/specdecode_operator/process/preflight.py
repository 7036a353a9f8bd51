"""Checks before the first decision: all permissions (RBAC), and one list of everything.

Without them a missing permission would surface at its first use, perhaps days later. Every account
may review its own access (`system:basic-user`), so the check needs no permission.
"""

import asyncio
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus

from specdecode_operator.cluster.cluster import Cluster
from specdecode_operator.cluster.denials import PERMISSION_GRACE_S
from specdecode_operator.cluster.kube_api import KubeApiError
from specdecode_operator.objects.kinds import LEASE, RESOURCE, TRIAL, ResourceKind
from specdecode_operator.process.errors import StartError
from specdecode_operator.process.resync import Resync

log = logging.getLogger(__name__)

RETRY_S = 2.0
GRANT = "; grant the operator's service account this verb, as the chart does"
ALONE = ", or run a single operator with --no-leader-election"
CONCURRENT_REVIEWS = 16


@dataclass(frozen=True, slots=True)
class Permission:
    """A verb on a kind or its sub-resource, in one namespace or in all."""

    verb: str
    kind: ResourceKind
    namespace: str | None
    subresource: str = ""
    name: str = ""
    """Name of the object; empty for all objects."""

    @property
    def what(self) -> str:
        """The resource in the format of `kubectl auth can-i`."""
        plural = f"{self.kind.plural}.{self.kind.group}" if self.kind.group else self.kind.plural
        return f"{plural}/{self.subresource}" if self.subresource else plural

    @property
    def review(self) -> dict[str, str]:
        """Attributes of the access review."""
        found = {"group": self.kind.group, "resource": self.kind.plural, "verb": self.verb}
        if self.namespace:
            found["namespace"] = self.namespace
        more = {"subresource": self.subresource, "name": self.name}
        return found | {field: value for field, value in more.items() if value}


def permissions(
    kinds: Iterable[ResourceKind], namespaces: tuple[str, ...]
) -> tuple[Permission, ...]:
    """Every permission that `kinds` declares, in each of the namespaces, or in all."""
    return tuple(
        permission
        for kind in kinds
        for namespace in namespaces or (None,)
        for permission in (
            *(Permission(verb, kind, namespace, name=kind.only or "") for verb in kind.verbs),
            *(Permission(verb, kind, namespace, "status") for verb in kind.status_verbs),
        )
    )


def lease_permissions(namespace: str, name: str) -> tuple[Permission, ...]:
    """Permissions for a Lease; `create` cannot be granted by name."""
    named = (verb for verb in LEASE.verbs if verb != "create")
    return (
        Permission("create", LEASE, namespace),
        *(Permission(verb, LEASE, namespace, name=name) for verb in named),
    )


def sentence(missing: Iterable[Permission]) -> str:
    """Format missing permissions, grouped by verb."""
    by_verb: dict[tuple[str, str | None], list[str]] = {}
    for permission in missing:
        by_verb.setdefault((permission.verb, permission.namespace), []).append(permission.what)
    parts = (
        f"{verb} {', '.join(what)} in {f'namespace {namespace}' if namespace else 'all namespaces'}"
        for (verb, namespace), what in by_verb.items()
    )
    return f"this account may not {'; nor '.join(parts)}"


async def missing_permissions(
    cluster: Cluster, wanted: Iterable[Permission]
) -> tuple[Permission, ...]:
    """The denied permissions; none if the API server serves no access reviews.

    Raises:
        ApiError: the API server cannot be reached, or this account may not review its own access.
    """
    gate = asyncio.Semaphore(CONCURRENT_REVIEWS)

    async def is_missing(permission: Permission) -> bool:
        async with gate:
            return not await cluster.may(permission.review)

    reviewed = tuple(wanted)
    try:
        answers = await asyncio.gather(*map(is_missing, reviewed))
    except KubeApiError as error:
        if error.code == HTTPStatus.NOT_FOUND:
            return ()
        raise
    return tuple(permission for permission, denied in zip(reviewed, answers, strict=True) if denied)


async def pass_preflight(
    cluster: Cluster,
    resync: Resync,
    wanted: tuple[Permission, ...],
    timeout_s: float,
    stop: asyncio.Event,
) -> bool:
    """Check all permissions and list everything; returns False if stopped meanwhile.

    Without the lists an owned object whose event is late would look missing. They also find a
    missing CRD, for which Kopf would wait silently. Every failure is retried until the timeout; an
    API server that has just started denies permissions that are granted.

    Raises:
        StartError: a check still fails after `timeout_s`; the message names what is missing.
    """
    started_s = time.monotonic()
    while not stop.is_set():
        age_s = time.monotonic() - started_s
        problem = await _problem(
            cluster, resync, wanted, age_s >= min(timeout_s, PERMISSION_GRACE_S)
        )
        if problem is None:
            return True
        if time.monotonic() - started_s > timeout_s:
            raise StartError(problem)
        log.warning("cannot start yet", extra={"why": problem})
        await asyncio.sleep(RETRY_S)
    return False


async def _problem(
    cluster: Cluster, resync: Resync, wanted: tuple[Permission, ...], may_skip_reviews: bool
) -> str | None:
    try:
        if denied := await _denied(cluster, wanted, may_skip_reviews):
            alone = ALONE if any(each.kind is LEASE for each in denied) else ""
            return f"{sentence(denied)}{GRANT}{alone}"
        await resync.once()
    except KubeApiError as error:
        return f"{error}{_remedy(error)}"
    return None


async def _denied(
    cluster: Cluster, wanted: tuple[Permission, ...], may_skip_reviews: bool
) -> tuple[Permission, ...]:
    """Permissions that are missing; none where the account may not review its own permissions."""
    try:
        return await missing_permissions(cluster, wanted)
    except KubeApiError as error:
        if error.code != HTTPStatus.FORBIDDEN or not may_skip_reviews:
            raise
        log.warning("starting without a check of permissions", extra={"why": str(error)})
        return ()


def _remedy(error: KubeApiError) -> str:
    if error.code == HTTPStatus.NOT_FOUND:
        crds = f"{RESOURCE.plural}.{RESOURCE.group} and {TRIAL.plural}.{TRIAL.group}"
        return f"; install the CRDs {crds}: helm install … --set crds.install=true"
    return GRANT if error.code == HTTPStatus.FORBIDDEN else ""
