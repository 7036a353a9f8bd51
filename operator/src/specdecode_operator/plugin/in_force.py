"""The configuration in force of a deployment: its spec, or the revision that a trial promoted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specdecode_api import names
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.objects.merge_patch import difference, merge_patch
from specdecode_operator.plugin.errors import PluginError
from specdecode_operator.trial.record.candidate import TRIED, batch_sizes
from specdecode_operator.trial.record.revisions import BadRevision, Revision, read_revision


@dataclass(frozen=True, slots=True)
class InForceSpec:
    """The spec that runs, and the revision that holds it; None where it is the resource's own."""

    spec: Mapping[str, Any]
    revision: Revision | None


def read_revisions(manifests: Sequence[Manifest]) -> list[Revision]:
    """Read ControllerRevisions, the newest first.

    Raises:
        PluginError: one of them holds no configuration.
    """
    try:
        found = [read_revision(each) for each in manifests]
    except BadRevision as error:
        raise PluginError(str(error)) from None
    return sorted(found, key=lambda each: each.number, reverse=True)


def in_force(resource: Manifest, revisions: Sequence[Revision]) -> InForceSpec:
    """Find what runs, by `status.effective`.

    Raises:
        PluginError: the revision in force does not exist.
    """
    effective = (resource.get("status") or {}).get("effective") or {}
    name = effective.get("revision")
    if not name or effective.get("reason") == "FollowsSpec":
        found = next((each for each in revisions if each.name == name), None)
        return InForceSpec(resource["spec"], found)
    found = next((each for each in revisions if each.name == name), None)
    if found is None:
        raise PluginError(
            f"ControllerRevision {name}, which is in force, does not exist; `kubectl specdecode "
            f"status {resource['metadata']['name']}` shows condition StateLost with the remedy"
        )
    return InForceSpec({**resource["spec"], **whole_spec(found)}, found)


def whole_spec(revision: Revision) -> dict[str, Any]:
    """Write the tuned table of a revision into its spec."""
    if not revision.table:
        return dict(revision.spec)
    adaptive = {"adaptive": {"batchSizes": batch_sizes(revision.table)}}
    merged: dict[str, Any] = merge_patch(revision.spec, {"speculation": adaptive})
    return merged


def adoption(resource: Manifest, running: InForceSpec, *, with_image: bool) -> dict[str, Any]:
    """Return the merge patch that makes the spec equal to what is in force; {} if it is.

    Args:
        with_image: whether the patch may set `engine.image`.
    """
    wanted = {name: running.spec[name] for name in TRIED if name in running.spec}
    stored = {name: resource["spec"][name] for name in TRIED if name in resource["spec"]}
    patch: dict[str, Any] = difference(stored, wanted)
    if not with_image and "image" in patch.get("engine", {}):
        engine = {name: value for name, value in patch["engine"].items() if name != "image"}
        patch = {**patch, "engine": engine}
        if not engine:
            del patch["engine"]
    return {"spec": patch} if patch else {}


def chosen_revision(
    revisions: Sequence[Revision], running: InForceSpec, wanted: str | None
) -> Revision:
    """Choose the revision to return to: by name or number, else the newest that is not in force.

    Raises:
        PluginError: there is no such revision.
    """
    current = running.revision.name if running.revision else None
    if wanted is None:
        others = [each for each in revisions if each.name != current]
        if not others:
            raise PluginError(
                "there is no earlier revision to return to; edit the spec of the "
                f"{names.KIND}, or name one with --to"
            )
        return others[0]
    for each in revisions:
        if wanted in (each.name, str(each.number)):
            return each
    known = ", ".join(f"{each.number} ({each.name})" for each in revisions) or "none"
    raise PluginError(f"no revision {wanted}; there are: {known}")


def rollback(running: InForceSpec, target: Revision) -> dict[str, Any]:
    """Return the candidate that makes the revision the configuration in force.

    Raises:
        PluginError: the revision is in force, or differs in what only an edit of the spec changes.
    """
    wanted = whole_spec(target)
    others = sorted(
        name for name in wanted.keys() - set(TRIED) if wanted[name] != running.spec.get(name)
    )
    if others:
        raise PluginError(
            f"revision {target.name} also has another {', '.join(others)}; edit these parts of the "
            f"{names.KIND} first"
        )
    tried = {name: wanted[name] for name in TRIED if name in wanted}
    candidate: dict[str, Any] = difference(
        {name: running.spec[name] for name in TRIED if name in running.spec}, tried
    )
    if not candidate:
        raise PluginError(f"revision {target.name} is in force already")
    return candidate
