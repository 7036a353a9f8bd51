"""The custom resource `SpecDecodeDeployment`: what a user writes and what the operator answers."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from specdecode_api.document import HOT, RESTART, ResourceRecord
from specdecode_api.speculation import (
    MAX_CANDIDATES,
    MAX_DRAFT_TOKENS,
    MAX_PAGE_SIZE,
    MAX_STEPS,
    MAX_TABLE_ENTRIES,
    MAX_TOPK,
    Algorithm,
    Policy,
)

Uri = Annotated[
    str,
    StringConstraints(min_length=8, max_length=1024, pattern=r"^(pvc|file)://[A-Za-z0-9/._-]+$"),
]
Quantity = Annotated[str, StringConstraints(min_length=1, max_length=64)]
Steps = Annotated[int, Field(ge=0, le=MAX_STEPS)]


class Model(ResourceRecord):
    """The target model."""

    uri: Uri = Field(
        description="Where the checkpoint lies: pvc://CLAIM/FOLDER or file:///FOLDER-ON-THE-NODE.",
        json_schema_extra=RESTART,
    )
    served_name: Annotated[str, StringConstraints(min_length=1, max_length=253)] | None = Field(
        default=None,
        description="Name of the model in the API; the resource's name where absent.",
        json_schema_extra=RESTART,
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        default="auto", description="Type of the weights in memory.", json_schema_extra=RESTART
    )
    context_length: int | None = Field(
        default=None,
        ge=16,
        le=10_000_000,
        description="Longest prompt plus answer in tokens; the model's own where absent.",
        json_schema_extra=RESTART,
    )


class Draft(ResourceRecord):
    """The checkpoint that proposes tokens."""

    uri: Uri = Field(
        description="Where the draft's checkpoint lies, spelled as model.uri.",
        json_schema_extra=RESTART,
    )


class BatchSizeEntry(ResourceRecord):
    """Depths that a range of batch sizes may use."""

    candidate_steps: list[Steps] = Field(
        min_length=1,
        max_length=MAX_CANDIDATES,
        description="Depths to choose from; 0 is plain decoding.",
        json_schema_extra=RESTART,
    )
    up_hysteresis: float = Field(
        default=0.0,
        ge=-16,
        le=16,
        json_schema_extra=HOT,
        description="Added to the accept length above which the depth rises (policy ema).",
    )
    down_hysteresis: float = Field(
        default=-0.25,
        ge=-16,
        le=16,
        json_schema_extra=HOT,
        description="Added to the accept length below which the depth falls (policy ema).",
    )
    ceiling_coeff: float = Field(
        default=0.0,
        ge=0,
        le=16,
        json_schema_extra=HOT,
        description="Caps the depth at this multiple of the accept length; 0 is no cap.",
    )
    ema_alpha: float = Field(
        default=0.2,
        gt=0,
        le=1,
        json_schema_extra=HOT,
        description="Weight of the newest round in the moving average (policy ema).",
    )
    update_interval: int = Field(
        default=5,
        ge=1,
        le=100_000,
        json_schema_extra=HOT,
        description="Rounds between two decisions (policy ema).",
    )
    warmup_batches: int = Field(
        default=10,
        ge=0,
        le=100_000,
        json_schema_extra=HOT,
        description="Rounds before the first decision (policy ema).",
    )


class Adaptive(ResourceRecord):
    """What chooses the depth of a round."""

    policy: Policy = Field(
        default=Policy.STATIC, description="Who decides.", json_schema_extra=RESTART
    )
    batch_sizes: dict[str, BatchSizeEntry] = Field(
        default={},
        max_length=MAX_TABLE_ENTRIES,
        description="Lower bound of a range of batch sizes, in digits, to the depths it may use.",
        json_schema_extra=RESTART,
    )


class Speculation(ResourceRecord):
    """How tokens are drafted and how deep."""

    algorithm: Algorithm = Field(
        default=Algorithm.NONE,
        description="Where draft tokens come from; NONE decodes plainly.",
        json_schema_extra=RESTART,
    )
    draft: Draft | None = Field(
        default=None, description="The draft's checkpoint.", json_schema_extra=RESTART
    )
    topk: int = Field(
        default=1,
        ge=1,
        le=MAX_TOPK,
        description="Children of a node of the draft tree; 1 drafts a chain.",
        json_schema_extra=RESTART,
    )
    num_steps: int | None = Field(
        default=None,
        ge=0,
        le=MAX_STEPS,
        description="Depth at start; 3 where absent and an algorithm is set.",
        json_schema_extra=RESTART,
    )
    num_draft_tokens: int | None = Field(
        default=None,
        ge=2,
        le=MAX_DRAFT_TOKENS,
        description="Nodes verified in a round, root included; numSteps + 1 where absent.",
        json_schema_extra=RESTART,
    )
    adaptive: Adaptive = Field(default=Adaptive(), description="Depth by batch size.")


class Serving(ResourceRecord):
    """Limits of one engine."""

    max_running_requests: int = Field(
        default=64,
        ge=1,
        le=4096,
        json_schema_extra=RESTART,
        description="Requests that decode together.",
    )
    max_queued_requests: int = Field(
        default=512,
        ge=0,
        le=1_000_000,
        json_schema_extra=RESTART,
        description="Requests that may wait; one more is answered with 429.",
    )
    chunked_prefill_tokens: int = Field(
        default=512,
        ge=16,
        le=65_536,
        json_schema_extra=RESTART,
        description="Prompt tokens computed between two decode rounds.",
    )
    kv_cache_size: Quantity | None = Field(
        default=None,
        json_schema_extra=RESTART,
        description="Memory for the key-value cache, such as 8Gi; what is left where absent.",
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        json_schema_extra=RESTART,
        description="Processor threads of an engine on a CPU.",
    )


class Lifecycle(ResourceRecord):
    """How a pod ends: preStopSeconds, then drainSeconds, within terminationGracePeriodSeconds."""

    pre_stop_seconds: int = Field(
        default=5,
        ge=0,
        le=600,
        json_schema_extra=RESTART,
        description="Wait for endpoints to forget the pod, still serving.",
    )
    drain_seconds: int = Field(
        default=60,
        ge=0,
        le=86_400,
        json_schema_extra=RESTART,
        description="Longest wait for running requests after the signal to stop.",
    )
    termination_grace_period_seconds: int = Field(
        default=90,
        ge=10,
        le=90_000,
        json_schema_extra=RESTART,
        description="When Kubernetes kills the pod.",
    )
    startup_timeout_seconds: int = Field(
        default=1800,
        ge=10,
        le=86_400,
        json_schema_extra=RESTART,
        description="Longest start, loading and capture included.",
    )


class Resources(ResourceRecord):
    """Compute resources of an engine's container."""

    limits: dict[str, Quantity] = Field(
        default={},
        max_length=16,
        json_schema_extra=RESTART,
        description="Hard limits, such as nvidia.com/gpu: 1.",
    )
    requests: dict[str, Quantity] = Field(
        default={},
        max_length=16,
        json_schema_extra=RESTART,
        description="What the scheduler reserves.",
    )


class Spec(ResourceRecord):
    """What the user wants."""

    model: Model = Field(description="The target model.")
    page_size: int = Field(
        default=16,
        ge=1,
        le=MAX_PAGE_SIZE,
        json_schema_extra=RESTART,
        description="Tokens in a page of the key-value cache; a power of two.",
    )
    speculation: Speculation = Field(default=Speculation(), description="How to draft.")
    serving: Serving = Field(default=Serving(), description="Limits of one engine.")
    lifecycle: Lifecycle = Field(default=Lifecycle(), description="Start and end of a pod.")
    replicas: int = Field(
        default=1, ge=0, le=1000, json_schema_extra=HOT, description="Engine pods."
    )
    device: Literal["GPU", "CPU"] = Field(
        default="GPU", json_schema_extra=RESTART, description="What the engine computes on."
    )
    resources: Resources = Field(default=Resources(), description="Compute resources of a pod.")
    image: Annotated[str, StringConstraints(min_length=1, max_length=512)] | None = Field(
        default=None,
        json_schema_extra=RESTART,
        description="Engine image; the operator's own setting where absent.",
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        default="IfNotPresent", json_schema_extra=RESTART, description="When to pull the image."
    )


class Condition(ResourceRecord):
    """A standard Kubernetes condition."""

    type: Annotated[str, StringConstraints(max_length=64)]
    status: Literal["True", "False", "Unknown"]
    reason: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    message: Annotated[str, StringConstraints(max_length=4096)] = ""
    last_transition_time: Annotated[str, StringConstraints(max_length=40)]
    observed_generation: int = Field(ge=0)


class Status(ResourceRecord):
    """What the operator sees."""

    observed_generation: int | None = Field(default=None, ge=0)
    replicas: int | None = Field(default=None, ge=0)
    ready_replicas: int | None = Field(default=None, ge=0)
    updated_replicas: int | None = Field(default=None, ge=0)
    selector: Annotated[str, StringConstraints(max_length=512)] | None = None
    url: Annotated[str, StringConstraints(max_length=512)] | None = None
    config_hash: Annotated[str, StringConstraints(max_length=64)] | None = None
    conditions: list[Condition] | None = Field(default=None, max_length=16)
