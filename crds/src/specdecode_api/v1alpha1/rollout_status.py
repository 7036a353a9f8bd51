"""What the status reports of tables and trials: recommended, in force, and what trials cost.

Numbers that are not counts are strings: Kubernetes keeps no floats in its interfaces.
"""

from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from specdecode_api.base import ResourceRecord, map_by
from specdecode_api.speculation import (
    MAX_BATCH_SIZE,
    MAX_CANDIDATES,
    MAX_STEPS,
    MAX_TABLE_ENTRIES,
    Algorithm,
)
from specdecode_api.v1alpha1.scalars import Int

MAX_SPENT: Final = 1000
"""Trials of a day whose cost is kept."""
MAX_PROMOTIONS: Final = 64
MAX_OVERRIDES: Final = 64

Time = Annotated[
    str, StringConstraints(max_length=40), Field(json_schema_extra={"format": "date-time"})
]
Hash = Annotated[str, StringConstraints(max_length=64)]
Number = Annotated[str, StringConstraints(max_length=24)]
Sentence = Annotated[str, StringConstraints(max_length=1024)]
TrialName = Annotated[str, StringConstraints(max_length=253)]
Count = Annotated[Int, Field(ge=0, le=2**53)]
NumSteps = Annotated[Int, Field(ge=0, le=MAX_STEPS)]

TrialKind = Literal["Hot", "Canary", "Switchback"]
TrialOrigin = Literal["User", "Edit", "Recommendation"]


class TableSteps(ResourceRecord):
    """Draft steps of a range of batch sizes, as in the spec."""

    from_: Int = Field(
        alias="from", ge=1, le=MAX_BATCH_SIZE, description="Lower bound of the range."
    )
    candidate_steps: list[NumSteps] = Field(
        max_length=MAX_CANDIDATES, description="Draft steps to choose from."
    )


TableShown = Annotated[
    list[TableSteps], Field(max_length=MAX_TABLE_ENTRIES, json_schema_extra=map_by("from"))
]


class SpeculationStatus(ResourceRecord):
    """How the engines draft, every default resolved."""

    algorithm: Algorithm = Field(description="Source of draft tokens.")
    policy: Literal["Static", "Ema", "Goodput"] = Field(
        description="Policy that chooses draft steps."
    )
    topk: Count = Field(description="Children of a node of the draft tree.")
    num_steps: NumSteps = Field(description="Draft steps at start, where the draft proposes none.")
    table: TableShown | None = Field(
        default=None, description="Draft steps by range of batch sizes; absent without a table."
    )


class BucketRates(ResourceRecord):
    """What numbers of draft steps would bring in a batch bucket."""

    batch_size: Count = Field(description="Smallest batch of the bucket.")
    decode_steps: Count = Field(description="Decode steps that were measured.")
    best: NumSteps | None = Field(
        default=None,
        description="Draft steps to change to; absent where what is done now should stay.",
    )
    rates: dict[str, Number] = Field(
        max_length=MAX_CANDIDATES,
        description="Draft steps to tokens per second of a request, as expected.",
    )


class RecommendationStatus(ResourceRecord):
    """The table that the fleet's measurements speak for."""

    table: TableShown = Field(
        description="Draft steps by range of batch sizes, for spec.speculation.adaptive.batchSizes."
    )
    table_hash: Hash = Field(description="Stands for the table.")
    expected_gain: Number = Field(description="Gain in tokens per second over the table in force.")
    gain_low: Number | None = Field(default=None, description="Lower end of the gain's interval.")
    gain_high: Number | None = Field(default=None, description="Upper end of the gain's interval.")
    decode_steps: Count = Field(description="Decode steps that it was learned from.")
    validity_key: Hash = Field(
        description="Stands for what it was learned on: model, draft, device, engine, page size."
    )
    made_at: Time = Field(description="When it was made or last changed.")
    batch_buckets: list[BucketRates] | None = Field(
        default=None, max_length=16, description="What it rests on, by batch bucket."
    )
    patch_hint: Annotated[str, StringConstraints(max_length=4096)] = Field(
        description="Command that puts it into the spec."
    )


class IntervalStatus(ResourceRecord):
    """The relative gain of the candidate, and the interval that it lies in at any time."""

    gain: Number = Field(description="Decode time per token that the candidate saves, estimated.")
    low: Number = Field(description="Lower end.")
    high: Number = Field(description="Upper end.")


class SpentShown(ResourceRecord):
    """What a trial cost, or may cost."""

    started_at: Time = Field(description="When the trial began.")
    candidate_pod_seconds: Number = Field(description="Pod-seconds on its candidate.")
    origin: TrialOrigin = Field(default="Recommendation", description="Who asked for it.")


class ExplorationStatus(ResourceRecord):
    """What trials cost, and when the operator may start the next one of its own."""

    trials_today: Count = Field(description="Trials that started within 24 hours.")
    candidate_share: Number = Field(
        description="Share of a day's pod-seconds that ran, or may still run, a candidate."
    )
    alpha_budget: Number = Field(
        description="Probability of a wrong promotion that the next trial may spend."
    )
    not_before: Time | None = Field(
        default=None, description="End of the rest after the latest trial, if it is not over."
    )
    trials: Count = Field(default=0, description="Trials that the operator has started so far.")
    promotions: Annotated[list[Count], Field(max_length=MAX_PROMOTIONS)] | None = Field(
        default=None, description="Numbers of those trials that were promoted, the latest only."
    )
    inconclusive: Count = Field(
        default=0, description="Inconclusive trials in a row; each doubles the rest."
    )
    spent: Annotated[list[SpentShown], Field(max_length=MAX_SPENT)] | None = Field(
        default=None, description="Cost of each trial within 24 hours."
    )


class LastTrial(ResourceRecord):
    """The latest trial that ended; the SpecDecodeTrial has the evidence."""

    name: TrialName = Field(description="Name of the SpecDecodeTrial.")
    id: Hash = Field(default="", description="Hash of what was tried.")
    origin: TrialOrigin = Field(default="User", description="Who asked for it.")
    verdict: Annotated[str, StringConstraints(max_length=32)] = Field(
        description="Verdict of the trial."
    )
    reason: Annotated[str, StringConstraints(max_length=64)] = Field(
        default="", description="Reason of the verdict, in one word for programs."
    )
    ended_at: Time = Field(description="When the verdict was given.")


class OverrideShown(ResourceRecord):
    """A field of the spec in whose place a promoted value is in force."""

    field: Annotated[str, StringConstraints(min_length=1, max_length=253)] = Field(
        description="Path of the field, such as engine.scheduler.maxRunningRequests."
    )
    spec_hash: Hash = Field(
        default="",
        description="Hash of the value in the spec at the promotion, empty where it was absent; "
        "another value in the spec ends the override.",
    )


class TableFor(ResourceRecord):
    """The configuration that a table was measured with."""

    config_hash: Hash = Field(description="Configuration of the pods.")
    table_hash: Hash = Field(default="", description="Table of this configuration.")


class Effective(ResourceRecord):
    """The configuration in force, and why it is not the spec's where it is not."""

    revision: TrialName | None = Field(
        default=None, description="ControllerRevision with the configuration in force."
    )
    config_hash: Hash = Field(description="Configuration of the serving pods.")
    table_hash: Hash = Field(default="", description="Table by which they choose draft steps.")
    table: TableShown | None = Field(
        default=None, description="The table, where it is not the spec's."
    )
    reason: Literal["FollowsSpec", "Promoted", "Guarded"] = Field(
        description="Why it is in force: FollowsSpec equals the spec, Promoted was put in force by "
        "a trial, Guarded precedes an edit that has not passed its trial."
    )
    message: Sentence = Field(default="", description="Why it differs from the spec.")
    trial: TrialName | None = Field(
        default=None, description="SpecDecodeTrial whose candidate was promoted last."
    )
    origin: TrialOrigin | None = Field(
        default=None, description="Who asked for the table, where it is not the spec's."
    )
    table_for: TableFor | None = Field(
        default=None,
        description="Configuration that the table was measured with; another one uses its own.",
    )
    overrides: Annotated[list[OverrideShown], Field(max_length=MAX_OVERRIDES)] | None = Field(
        default=None,
        json_schema_extra=map_by("field"),
        description="Fields of the spec that a promotion overrides.",
    )
