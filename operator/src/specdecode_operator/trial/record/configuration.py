"""What should run now and what the spec wants in its place: two configurations, one difference."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from specdecode_api.table import candidates
from specdecode_api.v1alpha1 import Spec
from specdecode_operator import owned
from specdecode_operator.judge.evidence import ArmKey
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.objects.resource import Resource, ResourceError, parse_stored
from specdecode_operator.trial.record.candidate import NOT_GUARDED
from specdecode_operator.trial.record.record import Record, Tuned
from specdecode_operator.trial.record.state import Table, Target, target_id


class Difference(StrEnum):
    """How the wanted configuration differs from the one in force."""

    NONE = "none"
    TABLE = "table"  # by a table that running engines can take up
    CONFIGURATION = "configuration"


@dataclass(frozen=True, slots=True)
class InForce:
    """What serves: the accepted spec, or the spec itself, and the tuned table over it."""

    resource: Resource
    plain: owned.Built
    """Without a tuned table."""
    built: owned.Built
    tuned: Tuned | None
    of: tuple[Mapping[str, Any] | None, Tuned | None]
    """The entries of the record that it was built from."""

    @property
    def table(self) -> Table:
        """The table by which its pods choose draft steps."""
        return self.built.entries

    @property
    def tuned_table(self) -> Table:
        """The table over that of the spec; empty if there is none."""
        return self.tuned.table if self.tuned else {}


def accepted_part(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a spec that is tried before it counts."""
    return {name: value for name, value in spec.items() if name not in NOT_GUARDED}


def in_force(manifest: Manifest, resource: Resource, record: Record, image: str) -> InForce:
    """What should serve now.

    Raises:
        ResourceError: when it cannot be built, for instance after an upgrade.
    """
    current = resource
    if record.accepted is not None:
        hot = {name: manifest["spec"][name] for name in NOT_GUARDED if name in manifest["spec"]}
        current = parse_stored(
            {**manifest, "spec": {**copy.deepcopy(dict(record.accepted)), **hot}}
        )
    plain = owned.build(current, image)
    tuned, recorded = record.tuned, (record.accepted, record.tuned)
    if tuned is None or tuned.base != plain.arm or not _fits(tuned.table, plain):
        return InForce(current, plain, plain, None, recorded)
    built = owned.build(current, image, tuned=tuned.table)
    return InForce(current, plain, built, tuned, recorded)


def difference(now: InForce, wanted: Resource, built: owned.Built, image: str) -> Difference:
    """Compare what should serve with what the spec wants, `built` being the latter."""
    if built.arm in (now.plain.arm, now.built.arm):
        return Difference.NONE
    same_but_table = _with_table_of(wanted, now.resource.spec)
    if same_but_table is None or not built.entries or not now.built.entries:
        return Difference.CONFIGURATION
    try:
        rest = owned.build(same_but_table, image)
    except ResourceError:
        return Difference.CONFIGURATION
    if rest.config_hash != now.built.config_hash or not _fits(built.entries, now.built):
        return Difference.CONFIGURATION
    if built.arm.table_hash == now.built.arm.table_hash:
        return Difference.NONE  # its table is in force already, tuned
    return Difference.TABLE


def table_target(now: InForce, table: Table, arm: ArmKey) -> Target:
    """A table to be tried under the configuration in force."""
    return Target(target_id(arm), arm, table)


def _with_table_of(wanted: Resource, spec: Spec) -> Resource | None:
    speculation = wanted.spec.speculation
    if speculation.adaptive.policy != spec.speculation.adaptive.policy:
        return None
    adaptive = speculation.adaptive.model_copy(
        update={"batch_sizes": spec.speculation.adaptive.batch_sizes}
    )
    changed = wanted.spec.model_copy(
        update={"speculation": speculation.model_copy(update={"adaptive": adaptive})}
    )
    return replace(wanted, spec=changed)


def _fits(table: Table, built: owned.Built) -> bool:
    """Whether engines of a configuration can take up a table while they run."""
    return set(candidates(table)) <= built.prepared_steps
