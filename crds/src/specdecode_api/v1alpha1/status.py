"""What the operator answers: conditions, counts for `scale`, and where to send requests."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from specdecode_api.base import ResourceRecord, map_by
from specdecode_api.report import ModelRole, ModelState
from specdecode_api.v1alpha1.activity import Activity
from specdecode_api.v1alpha1.rollout_status import (
    Effective,
    ExplorationStatus,
    LastTrial,
    Number,
    RecommendationStatus,
    SpeculationStatus,
    Time,
    TrialName,
)
from specdecode_api.v1alpha1.scalars import Int

Reason = Annotated[str, StringConstraints(min_length=1, max_length=128)]
Message = Annotated[str, StringConstraints(max_length=4096)]
Count = Annotated[Int, Field(ge=0, le=2**31 - 1)]
Bytes = Annotated[Int, Field(ge=0, le=2**53)]
Generation = Annotated[Int, Field(ge=0)]


class Condition(ResourceRecord):
    """A standard Kubernetes condition."""

    type: Annotated[str, StringConstraints(min_length=1, max_length=64)] = Field(
        description="What the condition is about, such as Ready."
    )
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: Reason = Field(description="Why, in one word for programs.")
    message: Message = Field(default="", description="Why, in a sentence for people.")
    last_transition_time: Time = Field(description="When the status last changed.")
    observed_generation: Generation | None = Field(
        default=None, description="Generation of the resource that was looked at."
    )


class ModelStatus(ResourceRecord):
    """A model that is downloaded: how far it is, and which commit it is."""

    role: ModelRole = Field(description="What the model is there for.")
    uri: Annotated[str, StringConstraints(max_length=1024)] = Field(
        description="Where it comes from, as in the spec."
    )
    state: ModelState = Field(description="State of the pod with the least progress.")
    revision: Annotated[str, StringConstraints(max_length=64)] | None = Field(
        default=None, description="Commit that pods serve, and that new pods will fetch."
    )
    bytes_done: Bytes | None = Field(default=None, description="Bytes on disk, checked.")
    bytes_total: Bytes | None = Field(default=None, description="Bytes of all its files.")
    message: Annotated[str, StringConstraints(max_length=1024)] = Field(
        default="", description="The same in a sentence."
    )


class PodDraftStatus(ResourceRecord):
    """A pod that does not use the wanted draft yet."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=253)] = Field(
        description="Name of the pod."
    )
    state: Literal["Waiting", "Reading", "Refused"] = Field(
        description="Waiting: not asked yet or without an answer; Reading: it reads the draft."
    )
    message: Annotated[str, StringConstraints(max_length=1024)] = Field(
        default="", description="What it answered."
    )


class DraftExchangeStatus(ResourceRecord):
    """The latest change of nothing but the draft, in running pods or by new ones."""

    uri: Annotated[str, StringConstraints(max_length=1024)] = Field(
        description="The wanted draft, as in the spec."
    )
    config_hash: Annotated[str, StringConstraints(max_length=64)] = Field(
        description="Stands for the configuration with this draft."
    )
    state: Literal["Exchanging", "Exchanged", "Refused", "ReplacingPods"] = Field(
        description="Exchanged: running pods use the draft; Refused: they keep the old one and try "
        "again; ReplacingPods: new ones begin with it."
    )
    exchanged: Count = Field(default=0, description="Pods that use the draft.")
    total: Count = Field(default=0, description="Pods that are asked to use it.")
    message: Annotated[str, StringConstraints(max_length=1024)] = Field(
        default="", description="Why the draft is refused, or pods are replaced."
    )
    pods: list[PodDraftStatus] = Field(
        default=[],
        max_length=16,
        json_schema_extra=map_by("name"),
        description="The first pods that do not use it yet.",
    )


class Address(ResourceRecord):
    """Where requests are sent."""

    url: Annotated[str, StringConstraints(max_length=512)] = Field(
        description="URL of the endpoint inside the cluster; the API is under /v1."
    )


class RouterStatus(ResourceRecord):
    """The routers, where there are any."""

    ready_replicas: Count = Field(description="Router pods that serve.")
    is_serving: bool = Field(
        description="Whether the Service leads to them; else to the engines, until both are ready."
    )


class MeasuredStatus(ResourceRecord):
    """What the engines of the configuration in force achieve."""

    accept_length: Number = Field(
        description="Tokens per decode step of a request, the bonus token included."
    )
    tokens_per_second: Number = Field(description="Output tokens per second of all engines.")


class Status(ResourceRecord):
    """What the operator sees."""

    observed_generation: Generation | None = Field(
        default=None, description="Generation of the resource that this status is about."
    )
    replicas: Count | None = Field(default=None, description="Pods of the Deployment that exist.")
    ready_replicas: Count | None = Field(default=None, description="Pods that serve.")
    routable_replicas: Count | None = Field(
        default=None, description="Pods that the Service sends requests to, of any configuration."
    )
    updated_replicas: Count | None = Field(
        default=None, description="Pods that run the wanted configuration."
    )
    selector: Annotated[str, StringConstraints(max_length=512)] | None = Field(
        default=None,
        description="Label selector of the pods that spec.replicas counts, for autoscalers; pods "
        "of trials are not among them.",
    )
    router: RouterStatus | None = Field(
        default=None, description="The routers; absent without spec.router."
    )
    address: Address | None = Field(default=None, description="Where requests are sent.")
    config_hash: Annotated[str, StringConstraints(max_length=64)] | None = Field(
        default=None, description="Stands for the configuration that the pods should run."
    )
    speculation: SpeculationStatus | None = Field(
        default=None, description="How the engines draft, every default resolved."
    )
    models: list[ModelStatus] | None = Field(
        default=None,
        max_length=2,
        json_schema_extra=map_by("role"),
        description="Models that are downloaded; absent where none is.",
    )
    draft_exchange: DraftExchangeStatus | None = Field(
        default=None, description="The latest change of nothing but the draft."
    )
    recommendation: RecommendationStatus | None = Field(
        default=None, description="The table that the fleet's measurements speak for."
    )
    active_trial: TrialName | None = Field(default=None, description="SpecDecodeTrial that runs.")
    last_trial: LastTrial | None = Field(default=None, description="Latest trial that ended.")
    exploration: ExplorationStatus | None = Field(
        default=None, description="Cost of trials; absent where the operator starts none."
    )
    measured: MeasuredStatus | None = Field(
        default=None,
        description="Accept length and throughput in the latest half hour; absent until measured.",
    )
    effective: Effective | None = Field(
        default=None,
        description="The configuration in force; absent where nothing is guarded or tuned.",
    )
    activity: Activity | None = Field(
        default=None,
        description="Work of the engines in the last day, by half hours; not kept in mode Manual.",
    )
    conditions: list[Condition] | None = Field(
        default=None,
        max_length=16,
        json_schema_extra=map_by("type"),
        description="What is well and what is not.",
    )
