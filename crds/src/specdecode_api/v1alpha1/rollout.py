"""How a change of the configuration gets in force: measured, recommended, tried, decided."""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from specdecode_api.base import HotRecord
from specdecode_api.duration import DURATION_PATTERN, duration_s
from specdecode_api.rules import Rule, or_default
from specdecode_api.v1alpha1.scalars import Duration, Int, Percent, within


def _are_durations(*values: str) -> str:
    return " && ".join(f"{value}.matches('^{DURATION_PATTERN}$')" for value in values)


_MIN_DURATION: Final = or_default("minDuration", "10m")
_MAX_DURATION: Final = or_default("maxDuration", "2h")
_BLOCK: Final = or_default("block", "1m")
_WASHOUT: Final = or_default("washout", "10s")
_OWN_BLOCK: Final = or_default("switchback.block", "1m")
_OWN_PAIRS: Final = or_default("switchback.minPairs", 6)
_OWN_MAX_DURATION: Final = or_default("guard.maxDuration", "2h")

FEWEST_PAIRS: Final = 11
"""Pairs of periods before which no comparison decides, at the error rates of the judge."""


class GuardSpec(HotRecord):
    """What a trial has to show, within which bounds."""

    min_gain: Percent = Field(
        default="3%",
        description="Least gain in decode time per token for which the operator changes a table "
        "without a user, and from which a table is recommended.",
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
        default="1m",
        description="Time that is not counted after an arm, or all restarted pods of a period, "
        "have begun to serve.",
    )
    cool_down: Duration = Field(
        default="30m", description="Rest after a trial before the operator starts the next one."
    )

    rules: ClassVar[tuple["Rule[GuardSpec]", ...]] = (
        Rule(
            cel=f"!({_are_durations(_MIN_DURATION, _MAX_DURATION)}) || "
            f"duration({_MIN_DURATION}) < duration({_MAX_DURATION})",
            holds=lambda it: duration_s(it.min_duration) < duration_s(it.max_duration),
            message="a trial must be allowed to last longer than it has to: raise maxDuration or "
            "lower minDuration",
            field="maxDuration",
        ),
    )


class Canary(HotRecord):
    """Pods that run the new configuration next to the old ones during a trial."""

    replicas: Int = Field(
        default=2,
        ge=1,
        le=100,
        description="Pods of the new configuration; they come on top of spec.replicas. One pod "
        "may be slow for its own reasons: with 1, only what is broken is caught; a user promotes.",
    )
    baseline: Literal["Fresh", "Stable"] = Field(
        default="Fresh",
        description="Fresh compares with as many new pods of the old configuration, so that both "
        "arms are equally young, and falls back to Stable where no node takes them; Stable "
        "compares with the pods that serve anyway.",
    )


class Switchback(HotRecord):
    """Periods of the baseline and of the candidate on the same pods.

    Strategies Hot and Switchback both use it. Of several pods, half run each table; pods that
    restart all run the same configuration.
    """

    block: Annotated[Duration, within("1s", "24h")] = Field(
        default="1m",
        description="Length of a period; periods come in pairs in a random order. Where pods "
        "restart between them, a period is at least ten times the measured start time of a pod, "
        "and guard.maxDuration must allow at least 11 pairs.",
    )
    washout: Annotated[Duration, within("0s", "1h")] = Field(
        default="10s", description="Time at the start of a period that is not counted."
    )
    min_pairs: Int = Field(
        default=6,
        ge=2,
        le=1000,
        description="Pairs of periods that have to be complete before a verdict, alarms apart.",
    )

    rules: ClassVar[tuple["Rule[Switchback]", ...]] = (
        Rule(
            cel=f"!({_are_durations(_WASHOUT, _BLOCK)}) || "
            f"duration({_WASHOUT}) < duration({_BLOCK})",
            holds=lambda it: duration_s(it.washout) < duration_s(it.block),
            message="no part of a period would be counted: lower washout or raise block",
            field="washout",
        ),
    )


class ExplorationSpec(HotRecord):
    """How much traffic trials may expose to configurations that are not in force."""

    max_candidate_share: Percent = Field(
        default="5%",
        description="Maximum share of a day's pod-seconds that run a candidate configuration. A "
        "trial for a recommendation, or of a user, starts only if its longest duration fits; "
        "trials of guarded edits count and always start.",
    )
    max_trials_per_day: Int = Field(
        default=4,
        ge=0,
        le=1000,
        description="Maximum number of trials that the operator starts within 24 hours; 0 starts "
        "none.",
    )


class RolloutSpec(HotRecord):
    """How a change of the configuration gets in force. The operator never writes the spec."""

    mode: Literal["Manual", "Recommend", "Auto"] = Field(
        default="Recommend",
        description="Manual measures nothing unasked; Recommend writes better tables into "
        "status.recommendation; Auto also tries them and applies what passes, without touching "
        "the spec.",
    )
    edit_policy: Literal["Immediate", "Guarded"] = Field(
        default="Immediate",
        description="What an edit of the spec does: Immediate rolls it out; Guarded tries it next "
        "to the configuration in force, which stays until the trial passes.",
    )
    strategy: Literal["Auto", "Hot", "Canary", "Switchback"] = Field(
        default="Auto",
        description="Hot gives a table to half of the pods by turns, Canary starts pods of the new "
        "configuration, Switchback alternates both on the same pods. Auto selects Hot or, with one "
        "replica, Switchback for tables that running engines can load; for other candidates Canary "
        "if both arms have 5 pods or more, else Switchback, which restarts the pods for each "
        "period. Auto never interrupts the only pod; a chosen Switchback does where no further pod "
        "fits, or with updateStrategy InPlace.",
    )
    guard: GuardSpec = Field(default=GuardSpec(), description="What a trial has to show.")
    canary: Canary = Field(default=Canary(), description="Pods of a canary.")
    switchback: Switchback = Field(
        default=Switchback(), description="Periods of strategies Hot and Switchback."
    )
    exploration: ExplorationSpec = Field(default=ExplorationSpec(), description="Budget of trials.")

    rules: ClassVar[tuple["Rule[RolloutSpec]", ...]] = (
        Rule(
            cel="!has(self.strategy) || !(self.strategy in ['Hot', 'Switchback']) || "
            f"!({_are_durations(_OWN_BLOCK, _OWN_MAX_DURATION)}) || "
            f"2 * duration({_OWN_BLOCK}).getSeconds() * "
            f"({_OWN_PAIRS} > {FEWEST_PAIRS} ? {_OWN_PAIRS} : {FEWEST_PAIRS}) "
            f"<= duration({_OWN_MAX_DURATION}).getSeconds()",
            holds=lambda it: it.strategy not in ("Hot", "Switchback") or it.has_time_for_pairs,
            message=f"{FEWEST_PAIRS} pairs of periods, or minPairs if that is more, do not fit: "
            "raise guard.maxDuration to 2 × switchback.block × pairs or more, lower "
            "switchback.block, or set strategy to Auto or Canary",
            field="guard.maxDuration",
            shows="strategy",
            absent="Auto",
        ),
    )

    @property
    def has_time_for_pairs(self) -> bool:
        """Whether the fewest periods that a comparison needs fit into `guard.maxDuration`."""
        pairs = max(FEWEST_PAIRS, self.switchback.min_pairs)
        periods_s = 2 * pairs * duration_s(self.switchback.block)
        return periods_s <= duration_s(self.guard.max_duration)
