"""How the pods of a resource spread over nodes, zones and the like."""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from specdecode_api.base import ResourceRecord
from specdecode_api.rules import Checked, Rule
from specdecode_api.v1alpha1.labels import LabelKey
from specdecode_api.v1alpha1.scalars import Int

NodePolicy = Literal["Honor", "Ignore"]


class Spread(ResourceRecord):
    """A topology spread constraint; the operator adds the selector of the resource's pods."""

    max_skew: Int = Field(ge=1, le=1000, description="By how many pods two domains may differ.")
    topology_key: LabelKey = Field(
        description="Label of nodes whose values are the domains, such as kubernetes.io/hostname."
    )
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"] = Field(
        description="What becomes of a pod that fits nowhere."
    )
    min_domains: Int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="Domains there must be, else none counts as filled (DoNotSchedule only).",
    )
    node_affinity_policy: NodePolicy | None = Field(
        default=None,
        description="Whether nodes that the pod does not select count; Honor where absent.",
    )
    node_taints_policy: NodePolicy | None = Field(
        default=None, description="Whether taints of nodes count; Ignore where absent."
    )

    rules: ClassVar[tuple["Rule[Spread]", ...]] = (
        Rule(
            cel="!has(self.minDomains) || self.whenUnsatisfiable == 'DoNotSchedule'",
            holds=lambda it: it.min_domains is None or it.when_unsatisfiable == "DoNotSchedule",
            message="minDomains counts for whenUnsatisfiable: DoNotSchedule only: set that, or "
            "remove it",
            field="minDomains",
        ),
    )


def _differ(spreads: list[Spread]) -> bool:
    kinds = [(spread.topology_key, spread.when_unsatisfiable) for spread in spreads]
    return len(set(kinds)) == len(kinds)


_DIFFER: Final[Rule[list[Spread]]] = Rule(
    cel="self.all(a, self.exists_one(b, b.topologyKey == a.topologyKey "
    "&& b.whenUnsatisfiable == a.whenUnsatisfiable))",
    holds=_differ,
    message="two constraints have the same topologyKey and whenUnsatisfiable: keep one of them",
)

Spreads = Annotated[list[Spread], Checked(_DIFFER)]
