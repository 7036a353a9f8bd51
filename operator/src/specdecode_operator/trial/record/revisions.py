"""Accepted configurations, one `ControllerRevision` (apps/v1) each.

A revision holds the accepted part of the spec, engine image included, and the tuned table. Its
data is immutable on the API server, and its name is derived from the data, so that the same
configuration has the same name. `config_hashes` are the config hashes of Deployments that ran it: a
release of the operator may render the same spec in another way.
"""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from specdecode_api import names
from specdecode_api.table import BatchSizeKey, TableEntry
from specdecode_operator.objects.kinds import CONTROLLER_REVISION, Manifest
from specdecode_operator.objects.observed import Observed, is_controlled_by
from specdecode_operator.objects.resource import Resource
from specdecode_operator.owned.build import finished
from specdecode_operator.owned.hashes import digest
from specdecode_operator.owned.labels import child_labels

KEPT: Final = 10
"""Revisions that are kept in addition to those in use."""

MAX_HASHES: Final = 8
"""Config hashes that a revision remembers."""

_DIGITS: Final = 10
_NO_TABLE: Mapping[str, TableEntry] = MappingProxyType({})
_TABLE = TypeAdapter(dict[BatchSizeKey, TableEntry])


class BadRevision(ValueError):
    """A ControllerRevision that holds no configuration; the message has place and remedy."""


@dataclass(frozen=True, slots=True)
class Revision:
    """An accepted configuration."""

    name: str
    number: int
    """Position in the order of acceptance; a rollback makes an old revision the newest."""
    spec: Mapping[str, Any]
    """The accepted part of the spec, as stored by the API server, with `engine.image`."""
    table: Mapping[str, TableEntry]
    """The tuned table over the spec's; empty if there is none."""
    config_hashes: tuple[str, ...]
    """Config hashes of Deployments that ran it, oldest first."""


def revision(
    name: str,
    number: int,
    spec: Mapping[str, Any],
    config_hash: str,
    table: Mapping[str, TableEntry] = _NO_TABLE,
) -> Revision:
    """Make a revision of the deployment `name`.

    Args:
        spec: accepted part of the spec, with `engine.image`.
        config_hash: of the Deployment that runs it.
    """
    fingerprint = digest(_data(spec, table))[:_DIGITS]
    return Revision(f"{name}-{fingerprint}", number, spec, table, (config_hash,))


def pinned(spec: Mapping[str, Any], image: str) -> dict[str, Any]:
    """Copy an accepted part with the engine image that it runs: its own, else `image`."""
    return {**spec, "engine": {"image": image, **spec.get("engine", {})}}


def next_number(revisions: Iterable[Revision]) -> int:
    """Return the number of the next revision; numbers begin with 1."""
    return max((each.number for each in revisions), default=0) + 1


def explaining(config_hash: str, revisions: Iterable[Revision]) -> Revision | None:
    """Return the newest revision that a Deployment with this config hash runs, if any."""
    found = [each for each in revisions if config_hash in each.config_hashes]
    return max(found, key=lambda each: each.number, default=None)


def rendered_as(accepted: Revision, config_hash: str) -> Revision:
    """Return the revision with a further config hash, written before a Deployment gets it."""
    others = [each for each in accepted.config_hashes if each != config_hash]
    hashes = (*others, config_hash)[-MAX_HASHES:]
    return Revision(accepted.name, accepted.number, accepted.spec, accepted.table, hashes)


def revision_manifest(accepted: Revision, owner: Resource) -> Manifest:
    """Build the ControllerRevision, owned by the SpecDecodeDeployment."""
    bare = {
        "apiVersion": CONTROLLER_REVISION.api_version,
        "kind": CONTROLLER_REVISION.kind,
        "metadata": {
            "name": accepted.name,
            "labels": child_labels(owner.name),
            "annotations": {names.ANNOTATION_CONFIG_HASHES: ",".join(accepted.config_hashes)},
        },
        "revision": accepted.number,
        "data": _data(accepted.spec, accepted.table),
    }
    return finished(bare, owner)


def read_revision(manifest: Manifest) -> Revision:
    """Read a ControllerRevision.

    Raises:
        BadRevision: its data is not an accepted configuration.
    """
    name = str(manifest["metadata"]["name"])
    data = manifest.get("data")
    if not isinstance(data, Mapping):
        raise _bad(name, f"data is {type(data).__name__}, not an object")
    spec = data.get("spec")
    if not isinstance(spec, Mapping):
        raise _bad(name, f"data.spec is {type(spec).__name__}, not an object")
    try:
        table = _TABLE.validate_python(data.get("table") or {})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, ("data", "table", *first["loc"])))
        raise _bad(name, f"{place}: {first['input']!r}, {first['msg']}") from None
    annotations = manifest["metadata"].get("annotations") or {}
    hashes = str(annotations.get(names.ANNOTATION_CONFIG_HASHES) or "").split(",")
    return Revision(
        name, int(manifest.get("revision") or 0), spec, table, tuple(filter(None, hashes))
    )


def readable(observed: Observed) -> dict[str, Revision]:
    """The revisions of a resource that hold a configuration, by name; others are left alone."""
    found = {}
    for each in observed.revisions:
        if is_controlled_by(each, observed.uid):
            with contextlib.suppress(BadRevision):
                found[each["metadata"]["name"]] = read_revision(each)
    return found


def surplus(
    revisions: Iterable[Revision], in_use: frozenset[str], kept: int = KEPT
) -> tuple[Revision, ...]:
    """Return the revisions to delete: all but those in use and the newest `kept` others."""
    idle = [each for each in revisions if each.name not in in_use]
    idle.sort(key=lambda each: each.number, reverse=True)
    return tuple(idle[kept:])


def _data(spec: Mapping[str, Any], table: Mapping[str, TableEntry]) -> Manifest:
    entries = {start: entry.model_dump(mode="json") for start, entry in table.items()}
    return {"spec": dict(spec)} | ({"table": entries} if entries else {})


def _bad(name: str, what: str) -> BadRevision:
    return BadRevision(
        f"ControllerRevision {name} cannot be read: {what}; restore it from a backup, or delete it"
    )
