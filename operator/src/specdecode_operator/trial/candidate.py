"""A candidate: the configuration in force with the merge patch of a trial."""

from collections.abc import Mapping
from typing import Any

from specdecode_operator.kinds import Manifest
from specdecode_operator.merge_patch import merge_patch
from specdecode_operator.resource import Resource, ResourceError, parse_stored


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
