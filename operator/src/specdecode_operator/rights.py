"""Asks the API server, before anything is done, for rights that the operator lacks.

A right that is missing would else show when it is needed first, perhaps days later. Every account
may ask about itself (`system:basic-user`), so asking needs no right of its own.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus

from specdecode_operator.cluster import ApiError, Cluster
from specdecode_operator.kinds import LEASE, Kind

IN_FLIGHT = 16


@dataclass(frozen=True, slots=True)
class Right:
    """A verb on a kind, or on a sub-resource of it, in one namespace or in all."""

    verb: str
    kind: Kind
    namespace: str | None
    subresource: str = ""
    name: str = ""
    """Of the one object that it is about; empty: all of them."""

    @property
    def what(self) -> str:
        """What it is on, as `kubectl auth can-i` has it."""
        plural = f"{self.kind.plural}.{self.kind.group}" if self.kind.group else self.kind.plural
        return f"{plural}/{self.subresource}" if self.subresource else plural

    @property
    def review(self) -> dict[str, str]:
        """Attributes of a review of this right."""
        found = {"group": self.kind.group, "resource": self.kind.plural, "verb": self.verb}
        if self.namespace:
            found["namespace"] = self.namespace
        more = {"subresource": self.subresource, "name": self.name}
        return found | {field: value for field, value in more.items() if value}


def rights(kinds: Iterable[Kind], namespaces: tuple[str, ...]) -> tuple[Right, ...]:
    """Every right that `kinds` declares, in each of the namespaces, or in all."""
    return tuple(
        right
        for kind in kinds
        for namespace in namespaces or (None,)
        for right in (
            *(Right(verb, kind, namespace) for verb in kind.verbs),
            *(Right(verb, kind, namespace, "status") for verb in kind.status_verbs),
        )
    )


def lease_rights(namespace: str, name: str) -> tuple[Right, ...]:
    """What holding a Lease takes; that it is created cannot be granted by name."""
    named = (verb for verb in LEASE.verbs if verb != "create")
    return (
        Right("create", LEASE, namespace),
        *(Right(verb, LEASE, namespace, name=name) for verb in named),
    )


def sentence(missing: Iterable[Right]) -> str:
    """Say what is missing, a verb's objects together."""
    by_verb: dict[tuple[str, str | None], list[str]] = {}
    for right in missing:
        by_verb.setdefault((right.verb, right.namespace), []).append(right.what)
    parts = (
        f"{verb} {', '.join(what)} in {f'namespace {namespace}' if namespace else 'all namespaces'}"
        for (verb, namespace), what in by_verb.items()
    )
    return f"this account may not {'; nor '.join(parts)}"


async def missing_rights(cluster: Cluster, wanted: Iterable[Right]) -> tuple[Right, ...]:
    """Those of the rights that the API server denies; none where it does not answer such questions.

    Raises:
        ApiError: when the API server cannot be reached.
    """
    gate = asyncio.Semaphore(IN_FLIGHT)

    async def is_missing(right: Right) -> bool:
        async with gate:
            return not await cluster.may(right.review)

    asked = tuple(wanted)
    try:
        answers = await asyncio.gather(*map(is_missing, asked))
    except ApiError as error:
        if error.code in (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND):
            return ()
        raise
    return tuple(right for right, denied in zip(asked, answers, strict=True) if denied)
