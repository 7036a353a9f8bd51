"""Candidates: merge patches of the configuration in force, read and written."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic.alias_generators import to_camel

from specdecode_api.table import TableEntry
from specdecode_api.v1alpha1 import Spec
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.objects.merge_patch import difference, merge_patch
from specdecode_operator.objects.resource import Resource, ResourceError, parse_stored
from specdecode_operator.owned.hashes import digest
from specdecode_operator.trial.record.state import Target

NOT_GUARDED = ("replicas", "rollout")
"""Parts of the spec that count at once, whatever is tried."""

DEFAULT_PAGE_SIZE: Final = Spec.model_fields["page_size"].default

TRIED = ("speculation", "pageSize", "engine")
"""Parts of the spec that a candidate may change."""


def patched(in_force: Manifest, candidate: Mapping[str, Any]) -> Resource:
    """Apply `spec.candidate` of a trial.

    Args:
        in_force: the custom resource with the spec in force.
        candidate: merge patch of that spec, with its nulls.

    Raises:
        ResourceError: the patched resource is invalid, or the patch changes nothing; the messages
            contain value, path and remedy.
    """
    before = parse_stored(in_force)
    after = parse_stored({**in_force, "spec": merge_patch(in_force["spec"], candidate)})
    unknown = sorted(set(after.ignored) - set(before.ignored))
    if unknown:
        raise ResourceError(
            *(f"{place} of the candidate is not a known field; remove it" for place in unknown)
        )
    if after.spec == before.spec:
        raise ResourceError(
            "spec.candidate changes nothing of the configuration in force; create a trial with "
            "another candidate"
        )
    return after


@dataclass(frozen=True, slots=True)
class DryRun:
    """A candidate as a custom resource that the API server has to accept before it is tried."""

    key: str
    manifest: Manifest


def dry_run(in_force: Manifest, trial: Manifest) -> DryRun:
    """Have the API server validate a candidate, with the admission policies of the cluster.

    As another resource in the same namespace, with the same labels and annotations: the operator
    may create custom resources, which it does in dry runs only, and may not change them.

    Each trial has a dry run of its own, because policies change.

    Args:
        in_force: the custom resource with the spec in force.
        trial: SpecDecodeTrial, whose candidate is a merge patch of that spec.
    """
    spec = merge_patch(in_force["spec"], trial["spec"]["candidate"])
    metadata = in_force["metadata"]
    key = digest([trial["metadata"]["uid"], spec])
    copied = {name: metadata[name] for name in ("labels", "annotations") if name in metadata}
    manifest = {
        **{name: in_force[name] for name in ("apiVersion", "kind")},
        "metadata": {"name": f"trial-{key}", "namespace": metadata["namespace"], **copied},
        "spec": spec,
    }
    return DryRun(key, manifest)


def spec_in_force(spec: Mapping[str, Any], accepted: Mapping[str, Any] | None) -> dict[str, Any]:
    """The spec with the accepted part that is in force in place of its own."""
    return {**spec, **(accepted or {})}


def candidate_of(in_force: Mapping[str, Any], target: Target) -> dict[str, Any]:
    """Write a target as a candidate, the parts that no candidate may change left out."""
    if target.table is not None:
        return {"speculation": {"adaptive": {"batchSizes": batch_sizes(target.table)}}}
    wanted = target.spec or {}
    found: dict[str, Any] = {}
    for name in ("speculation", "engine"):
        # A part that is removed is written as nulls of its fields: it cannot be null itself.
        if changed := difference(in_force.get(name, {}), wanted.get(name, {})):
            found[name] = changed
    before, after = (each.get("pageSize", DEFAULT_PAGE_SIZE) for each in (in_force, wanted))
    # Where it is removed, its default is written: the API server drops a null.
    return found | ({"pageSize": after} if after != before else {})


def beyond_candidates(in_force: Resource, manifest: Manifest, target: Target) -> list[str]:
    """Parts of the spec that a target changes and no candidate may change.

    Args:
        manifest: the custom resource.
    """
    if target.spec is None:
        return []
    wanted = parse_stored({**manifest, "spec": dict(target.spec)})
    before, after = (each.spec.model_dump(by_alias=True) for each in (in_force, wanted))
    others = after.keys() - {*TRIED, *NOT_GUARDED}
    return sorted(name for name in others if before[name] != after[name])


def batch_sizes(table: Mapping[str, TableEntry]) -> list[dict[str, Any]]:
    """Write a table as `spec.speculation.adaptive.batchSizes`, starts ascending."""
    return [
        {"from": start}
        | {
            to_camel(name): value
            for name, value in entry.model_dump(mode="json", exclude_defaults=True).items()
        }
        for start, entry in sorted((int(start), entry) for start, entry in table.items())
    ]
