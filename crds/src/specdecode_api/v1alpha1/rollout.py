"""How a change of the configuration gets in force: measured, recommended, tried, decided."""

from typing import ClassVar, Literal

from pydantic import Field

from specdecode_api.base import HotRecord
from specdecode_api.duration import DURATION_PATTERN, duration_s
from specdecode_api.rules import Rule
from specdecode_api.v1alpha1.scalars import Duration, Int, Percent

_DURATIONS = " && ".join(
    f"self.{field}.matches('^{DURATION_PATTERN}$')" for field in ("minDuration", "maxDuration")
)


class GuardSpec(HotRecord):
    """What a trial has to show, within which bounds."""

    min_gain: Percent = Field(
        default="3%",
        description="Least gain in decode time per token for which the operator changes a table "
        "by itself, and the gain beyond which a recommendation is one.",
    )
    margin: Percent = Field(
        default="2%",
        description="How much slower a change that a user asked for may be and still be taken.",
    )
    min_requests: Int = Field(
        default=200,
        ge=2,
        le=1_000_000,
        description="Requests that each arm has to answer before a verdict, alarms apart.",
    )
    min_stratum_requests: Int = Field(
        default=20,
        ge=2,
        le=100_000,
        description="Requests of each arm that a kind of request needs to be compared.",
    )
    min_duration: Duration = Field(
        default="10m", description="Least time of measuring before a verdict, alarms apart."
    )
    max_duration: Duration = Field(
        default="2h",
        description="Longest time of measuring; a trial without a verdict by then changes nothing.",
    )
    warm_up: Duration = Field(
        default="1m", description="Time that is not counted after an arm has begun to serve."
    )
    cool_down: Duration = Field(
        default="30m", description="Rest after a trial before the operator begins one by itself."
    )

    rules: ClassVar[tuple["Rule[GuardSpec]", ...]] = (
        Rule(
            cel=f"!({_DURATIONS}) || duration(self.minDuration) < duration(self.maxDuration)",
            holds=lambda it: duration_s(it.min_duration) < duration_s(it.max_duration),
            message="a trial must be allowed to last longer than it has to: raise maxDuration or "
            "lower minDuration",
            field="maxDuration",
        ),
    )


class Canary(HotRecord):
    """Pods that run the new configuration beside the old ones during a trial."""

    replicas: Int = Field(
        default=2,
        ge=1,
        le=100,
        description="Pods of the new configuration; they come on top of spec.replicas. One pod "
        "may be slow by itself, so with 1 only what is broken is caught, and a person promotes.",
    )
    baseline: Literal["Fresh", "Stable"] = Field(
        default="Fresh",
        description="Fresh compares with as many new pods of the old configuration, so that both "
        "arms are equally young, and falls back to Stable where no node takes them; Stable "
        "compares with the pods that serve anyway.",
    )


class Switchback(HotRecord):
    """Turns of old and new table on the same pods; of several pods the halves take them crosswise.

    Strategies Hot and Switchback both go by it.
    """

    block_seconds: Int = Field(
        default=120,
        ge=1,
        le=86_400,
        description="Length of a turn; turns come in pairs in a random order.",
    )
    washout_seconds: Int = Field(
        default=10, ge=0, le=3600, description="Time at the begin of a turn that is not counted."
    )
    min_pairs: Int = Field(
        default=6,
        ge=2,
        le=1000,
        description="Pairs of turns that have to be complete before a verdict, alarms apart.",
    )

    rules: ClassVar[tuple["Rule[Switchback]", ...]] = (
        Rule(
            cel="self.washoutSeconds < self.blockSeconds",
            holds=lambda it: it.washout_seconds < it.block_seconds,
            message="nothing of a turn would be counted: lower washoutSeconds or raise "
            "blockSeconds",
            field="washoutSeconds",
        ),
    )


class RolloutSpec(HotRecord):
    """How a change of the configuration gets in force. The operator never writes the spec."""

    mode: Literal["Manual", "Recommend", "Auto"] = Field(
        default="Recommend",
        description="Manual measures nothing unasked; Recommend writes better tables into "
        "status.recommendation; Auto also tries them and applies what passes, without touching "
        "the spec.",
    )
    guarded: bool = Field(
        default=False,
        strict=True,
        description="Try edits of the spec beside the configuration in force, which stays until "
        "they pass.",
    )
    strategy: Literal["Auto", "Hot", "Canary", "Switchback"] = Field(
        default="Auto",
        description="Hot gives a table to half of the pods in turns, Canary starts pods of the new "
        "configuration, Switchback takes turns on the same pods. Auto takes Hot or, with one "
        "replica, Switchback for tables that running engines can take up, else Canary.",
    )
    guard: GuardSpec = Field(default=GuardSpec(), description="What a trial has to show.")
    canary: Canary = Field(default=Canary(), description="Pods of a canary.")
    switchback: Switchback = Field(
        default=Switchback(), description="Turns of strategies Hot and Switchback."
    )
