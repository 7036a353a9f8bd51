"""How a rollout replaces engines."""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from specdecode_api.base import HotRecord
from specdecode_api.rules import Rule, or_default
from specdecode_api.v1alpha1.scalars import CountOrPercent, Duration, within

_NONE: Final = (0, "0%")
_TYPE: Final = or_default("type", "Auto")


class UpdateStrategySpec(HotRecord):
    """Whether a replacement starts before or after the engine that it replaces, and how many."""

    type: Literal["Auto", "Surge", "InPlace"] = Field(
        default="Auto",
        description="Surge starts a new engine before it stops an old one, and waits for free "
        "capacity; InPlace stops an old one first; Auto surges, and continues in place when no "
        "capacity becomes available within surgeTimeout.",
    )
    max_surge: CountOrPercent | None = Field(
        default=None,
        description="Engines above replicas during a rollout, as in a Deployment: a number or a "
        "percentage, rounded up; 1 where absent, and 0 in place.",
    )
    max_unavailable: CountOrPercent | None = Field(
        default=None,
        description="Engines that may be missing during a rollout, as in a Deployment: a number or "
        "a percentage, rounded down; 0 where absent, and 1 in place.",
    )
    surge_timeout: Annotated[Duration, within("0s", "24h")] = Field(
        default="10m",
        description="How long a new engine may wait for capacity, or for a PVC in use on another "
        "node, before type Auto continues in place; while a node is being added for it, the wait "
        "is extended by at most 30m.",
    )

    rules: ClassVar[tuple["Rule[UpdateStrategySpec]", ...]] = (
        Rule(
            cel=f"{_TYPE} != 'InPlace' || !has(self.maxSurge) || string(self.maxSurge) in "
            "['0', '0%']",
            holds=lambda it: it.type != "InPlace" or it.max_surge in (None, *_NONE),
            message="type InPlace stops an engine before it starts another: remove maxSurge, or "
            "use type Surge",
            field="maxSurge",
        ),
        Rule(
            cel=f"{_TYPE} != 'InPlace' || !has(self.maxUnavailable) || "
            "!(string(self.maxUnavailable) in ['0', '0%'])",
            holds=lambda it: it.type != "InPlace" or it.max_unavailable not in _NONE,
            message="type InPlace needs an engine that may be missing: remove maxUnavailable, or "
            "write 1 or more",
            field="maxUnavailable",
        ),
        Rule(
            cel=f"{_TYPE} == 'InPlace' || !has(self.maxSurge) || "
            "!(string(self.maxSurge) in ['0', '0%']) || has(self.maxUnavailable) && "
            "!(string(self.maxUnavailable) in ['0', '0%'])",
            holds=lambda it: (
                it.type == "InPlace"
                or it.max_surge not in _NONE
                or it.max_unavailable not in (None, *_NONE)
            ),
            message="maxSurge 0 with maxUnavailable 0 can replace nothing: raise one of them",
            field="maxSurge",
        ),
    )
