"""Start and end of an engine's pod."""

from typing import Annotated, ClassVar, Final

from pydantic import Field

from specdecode_api.base import ResourceRecord
from specdecode_api.duration import DURATION_PATTERN, duration_s
from specdecode_api.rules import Rule, or_default
from specdecode_api.v1alpha1.scalars import Duration, within

SPARE_SECONDS: Final = 10
"""What a pod needs to end after its drain, before Kubernetes kills it."""

USUAL_GRACE_SECONDS: Final = 90
"""A shorter one would bring no pod to its end sooner."""

_PRE_STOP: Final = or_default("preStop", "5s")
_DRAIN_TIMEOUT: Final = or_default("drainTimeout", "60s")
_ARE_DURATIONS: Final = " && ".join(
    f"{value}.matches('^{DURATION_PATTERN}$')"
    for value in (_PRE_STOP, _DRAIN_TIMEOUT, "self.terminationGracePeriod")
)


class LifecycleSpec(ResourceRecord):
    """How a pod starts and ends: preStop, then drainTimeout, within its grace period."""

    pre_stop: Annotated[Duration, within("0s", "10m")] = Field(
        default="5s",
        description="Wait for endpoints to be updated before the engine stops; it still serves.",
    )
    drain_timeout: Annotated[Duration, within("0s", "24h")] = Field(
        default="60s", description="Maximum wait for running requests after the signal to stop."
    )
    termination_grace_period: Annotated[Duration, within("10s", "25h")] | None = Field(
        default=None,
        description="When Kubernetes kills the pod; at least preStop + drainTimeout + "
        f"{SPARE_SECONDS}s; where absent that, or {USUAL_GRACE_SECONDS}s if that is less.",
    )
    startup_timeout: Annotated[Duration, within("10s", "24h")] = Field(
        default="30m",
        description="Maximum duration of a start, loading and graph capture included.",
    )
    step_timeout: Annotated[Duration, within("0s", "24h")] = Field(
        default="5m",
        description="A step of an engine that takes longer fails its liveness probe, and its "
        "container is restarted; 0s disables this.",
    )

    rules: ClassVar[tuple["Rule[LifecycleSpec]", ...]] = (
        Rule(
            cel=f"!has(self.terminationGracePeriod) || !({_ARE_DURATIONS}) || "
            f"duration({_PRE_STOP}) + duration({_DRAIN_TIMEOUT}) + duration('{SPARE_SECONDS}s') "
            "<= duration(self.terminationGracePeriod)",
            holds=lambda life: life.least_grace_seconds <= life.grace_seconds,
            message=f"preStop + drainTimeout + {SPARE_SECONDS}s must fit into "
            "terminationGracePeriod, or Kubernetes kills running requests: "
            "raise it or drain for a shorter time",
            field="terminationGracePeriod",
        ),
    )

    @property
    def least_grace_seconds(self) -> int:
        """How long a pod may take to end without an error."""
        return duration_s(self.pre_stop) + duration_s(self.drain_timeout) + SPARE_SECONDS

    @property
    def grace_seconds(self) -> int:
        """When Kubernetes kills a pod that ends."""
        if self.termination_grace_period is None:
            return max(USUAL_GRACE_SECONDS, self.least_grace_seconds)
        return duration_s(self.termination_grace_period)
