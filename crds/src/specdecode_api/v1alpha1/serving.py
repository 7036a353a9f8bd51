"""One engine's limits, and the life of its pod."""

from typing import ClassVar, Final, Literal

from pydantic import Field

from specdecode_api import names
from specdecode_api.base import HOT, ResourceRecord
from specdecode_api.rules import Rule
from specdecode_api.v1alpha1.scalars import ByteSize, Int, ObjectName, RequestLabel, SecretKey

SPARE_SECONDS: Final = 10
"""What a pod needs to end after its drain, before Kubernetes kills it."""

USUAL_GRACE_SECONDS: Final = 90
"""A shorter one would bring no pod to its end sooner."""


class ApiKeysSpec(ResourceRecord):
    """Keys that clients must show. Only the pods read the Secret, never the operator."""

    secret_name: ObjectName = Field(
        description="Secret of the same namespace that holds the keys, one in a line; a change "
        "of it counts without a restart."
    )
    key: SecretKey | None = Field(
        default=None, description="Key of the Secret to read; all of them where absent."
    )


class Serving(ResourceRecord):
    """Limits of one engine."""

    max_running_requests: Int = Field(
        default=64, ge=1, le=4096, description="Requests that decode together."
    )
    max_queued_requests: Int = Field(
        default=512,
        ge=0,
        le=1_000_000,
        description="Requests that may wait; one more is answered with 429.",
    )
    chunked_prefill_tokens: Int = Field(
        default=512,
        ge=16,
        le=65_536,
        description="Prompt tokens computed between two decode rounds.",
    )
    kv_cache_size: ByteSize | None = Field(
        default=None,
        description="Memory for the key-value cache, such as 8Gi; what is left where absent.",
    )
    threads: Int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Processor threads of an engine on a CPU; the engine's choice where absent.",
    )
    api_keys: ApiKeysSpec | None = Field(
        default=None,
        description="Keys of which clients must show one, as OpenAI's clients do; none is asked "
        "for where absent.",
    )
    request_labels: list[RequestLabel] = Field(
        default=[],
        max_length=names.MAX_REQUEST_LABELS,
        description=f"Values of the header {names.HEADER_LABEL} that requests are counted apart "
        "by, such as code and chat; every other value counts as none.",
    )


class LifecycleSpec(ResourceRecord):
    """How a pod ends: preStopSeconds, then drainSeconds, within its grace period."""

    pre_stop_seconds: Int = Field(
        default=5, ge=0, le=600, description="Wait for endpoints to forget the pod, still serving."
    )
    drain_seconds: Int = Field(
        default=60,
        ge=0,
        le=86_400,
        description="Longest wait for running requests after the signal to stop.",
    )
    termination_grace_period_seconds: Int | None = Field(
        default=None,
        ge=10,
        le=90_000,
        description="When Kubernetes kills the pod; at least preStopSeconds + drainSeconds + "
        f"{SPARE_SECONDS}; where absent that, or {USUAL_GRACE_SECONDS} if that is less.",
    )
    startup_timeout_seconds: Int = Field(
        default=1800, ge=10, le=86_400, description="Longest start, loading and capture included."
    )
    step_timeout_seconds: Int = Field(
        default=300,
        ge=0,
        le=86_400,
        description="A step of an engine that takes longer fails its liveness probe, and its "
        "container is restarted; 0 disables this.",
    )
    update_strategy: Literal["Auto", "Surge", "InPlace"] = Field(
        default="Auto",
        json_schema_extra=HOT,
        description="How a rollout replaces engines: Surge starts a new one before an old one "
        "goes, and waits for a free accelerator; InPlace ends an old one first; Auto surges, and "
        "goes on in place when nothing is free for the new one.",
    )

    rules: ClassVar[tuple["Rule[LifecycleSpec]", ...]] = (
        Rule(
            cel="!has(self.terminationGracePeriodSeconds) || self.preStopSeconds + "
            f"self.drainSeconds + {SPARE_SECONDS} <= self.terminationGracePeriodSeconds",
            holds=lambda life: life.least_grace_seconds <= life.grace_seconds,
            message=f"preStopSeconds + drainSeconds + {SPARE_SECONDS} must fit into "
            "terminationGracePeriodSeconds, or Kubernetes kills running requests: "
            "raise it or drain for a shorter time",
            field="terminationGracePeriodSeconds",
        ),
    )

    @property
    def least_grace_seconds(self) -> int:
        """How long a pod may take to end when all goes as the spec says."""
        return self.pre_stop_seconds + self.drain_seconds + SPARE_SECONDS

    @property
    def grace_seconds(self) -> int:
        """When Kubernetes kills a pod that ends."""
        stated = self.termination_grace_period_seconds
        return max(USUAL_GRACE_SECONDS, self.least_grace_seconds) if stated is None else stated
