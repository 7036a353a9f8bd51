"""Where engine pods may run, and what they are given beyond what the operator writes."""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from specdecode_api.base import ResourceRecord
from specdecode_api.rules import Checked, Rule
from specdecode_api.v1alpha1.environment import Environment
from specdecode_api.v1alpha1.labels import Annotations, LabelKey, Labels, LabelValue, OwnLabels
from specdecode_api.v1alpha1.scalars import FreeObject, Int, ObjectName


class Toleration(ResourceRecord):
    """A taint of nodes that pods may run on all the same, in the words of Kubernetes."""

    key: LabelKey | None = Field(
        default=None, description="Key of the taint; every key where absent."
    )
    operator: Literal["Equal", "Exists"] | None = Field(
        default=None, description="Whether the taint's value must be equal; Equal where absent."
    )
    value: LabelValue | None = Field(default=None, description="Value of the taint.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Effect of the taint; every effect where absent."
    )
    toleration_seconds: Int | None = Field(
        default=None,
        ge=0,
        le=2**31 - 1,
        description="How long a pod stays on a node that gets the taint; for ever where absent.",
    )

    rules: ClassVar[tuple["Rule[Toleration]", ...]] = (
        Rule(
            cel="has(self.key) || has(self.operator) && self.operator == 'Exists'",
            holds=lambda it: it.key is not None or it.operator == "Exists",
            message="a toleration without a key tolerates every taint: add operator: Exists, "
            "or a key",
            field="operator",
        ),
        Rule(
            cel="!has(self.value) || !has(self.operator) || self.operator == 'Equal'",
            holds=lambda it: it.value is None or it.operator != "Exists",
            message="operator Exists compares no value: remove value",
            field="value",
        ),
        Rule(
            cel="!has(self.tolerationSeconds) || has(self.effect) && self.effect == 'NoExecute'",
            holds=lambda it: it.toleration_seconds is None or it.effect == "NoExecute",
            message="tolerationSeconds counts for effect NoExecute only: set that, or remove it",
            field="tolerationSeconds",
        ),
    )


class Affinity(ResourceRecord):
    """Which nodes, and which neighbours, pods seek or avoid, in the words of Kubernetes."""

    node_affinity: FreeObject | None = Field(default=None, description="Nodes, as in a pod.")
    pod_affinity: FreeObject | None = Field(
        default=None, description="Pods to be near to, as in a pod."
    )
    pod_anti_affinity: FreeObject | None = Field(
        default=None, description="Pods to keep away from, as in a pod."
    )


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


def _have_different_keys(spreads: list[Spread]) -> bool:
    kinds = [(spread.topology_key, spread.when_unsatisfiable) for spread in spreads]
    return len(set(kinds)) == len(kinds)


_DIFFERENT_KEYS: Final[Rule[list[Spread]]] = Rule(
    cel="self.all(a, self.exists_one(b, b.topologyKey == a.topologyKey "
    "&& b.whenUnsatisfiable == a.whenUnsatisfiable))",
    holds=_have_different_keys,
    message="two constraints have the same topologyKey and whenUnsatisfiable: keep one of them",
)

Spreads = Annotated[list[Spread], Checked(_DIFFERENT_KEYS)]


class PullSecret(ResourceRecord):
    """A Secret of the same namespace with which nodes pull images."""

    name: ObjectName = Field(description="Name of the Secret.")


class TemplateMetadata(ResourceRecord):
    """Labels and annotations that pods get beyond the operator's."""

    labels: OwnLabels = Field(
        default={}, max_length=64, description="Labels of pods; keys of the operator are refused."
    )
    annotations: Annotations = Field(
        default={},
        max_length=64,
        description="Annotations of pods; keys of the operator are refused.",
    )


class Template(ResourceRecord):
    """A patch of the pod template, for what has no field of its own."""

    metadata: TemplateMetadata = Field(
        default=TemplateMetadata(), description="Labels and annotations to add."
    )
    spec: FreeObject = Field(
        default={},
        description="Parts of a pod's spec, as in a pod. Objects are merged, and so are "
        "containers, volumes and the like by name; null removes what the operator wrote; other "
        "values replace it. What the operator answers for is refused, with the field to use "
        "instead. At most 16 KiB.",
    )


class Pod(ResourceRecord):
    """Where engine pods may run, and what they are given."""

    node_selector: Labels = Field(
        default={}, max_length=32, description="Labels that a node must have."
    )
    tolerations: list[Toleration] = Field(
        default=[],
        max_length=32,
        description="Taints that pods tolerate; that of GPU nodes, nvidia.com/gpu, is added on a "
        "GPU.",
    )
    affinity: Affinity = Field(
        default=Affinity(), description="Nodes and neighbours that pods seek or avoid."
    )
    topology_spread_constraints: Spreads = Field(
        default=[],
        max_length=8,
        description="How pods of this resource spread over nodes, zones and the like; the "
        "scheduler's own default where empty, which spreads over nodes and zones as it can.",
    )
    runtime_class_name: ObjectName | None = Field(
        default=None,
        description="Container runtime of the pods, such as nvidia; the node's where absent.",
    )
    priority_class_name: ObjectName | None = Field(
        default=None, description="Priority of the pods; the cluster's default where absent."
    )
    image_pull_secrets: list[PullSecret] = Field(
        default=[], max_length=8, description="Secrets with which nodes pull the images."
    )
    env: Environment = Field(
        default=[],
        max_length=64,
        description="Environment variables of the engine, and of the container that fetches "
        "models.",
    )
    template: Template = Field(
        default=Template(), description="Patch of the pod template, for what has no field here."
    )
