"""What the status reports of tables and trials: recommended, running, decided, in force.

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
)
from specdecode_api.v1alpha1.scalars import Int

MAX_HISTORY: Final = 10
MAX_STRATA: Final = 16
MAX_PODS: Final = 16
MAX_EVIDENCE: Final = 65_536

Time = Annotated[
    str, StringConstraints(max_length=40), Field(json_schema_extra={"format": "date-time"})
]
Hash = Annotated[str, StringConstraints(max_length=64)]
Number = Annotated[str, StringConstraints(max_length=24)]
Sentence = Annotated[str, StringConstraints(max_length=1024)]
TrialName = Annotated[str, StringConstraints(max_length=253)]
Count = Annotated[Int, Field(ge=0, le=2**53)]
Depth = Annotated[Int, Field(ge=0, le=MAX_STEPS)]

TrialKind = Literal["Hot", "Canary", "Switchback"]
TrialVerdict = Literal["Promoted", "Passed", "RolledBack", "Inconclusive", "Aborted", "Superseded"]


class TableSteps(ResourceRecord):
    """Draft steps of a range of batch sizes, as in the spec."""

    from_: Int = Field(
        alias="from", ge=1, le=MAX_BATCH_SIZE, description="Lower bound of the range."
    )
    candidate_steps: list[Depth] = Field(
        max_length=MAX_CANDIDATES, description="Depths to choose from."
    )


TableShown = Annotated[
    list[TableSteps], Field(max_length=MAX_TABLE_ENTRIES, json_schema_extra=map_by("from"))
]


class BandRates(ResourceRecord):
    """What depths would bring at similar batch sizes."""

    batch_size: Count = Field(description="Smallest batch of the band.")
    decode_steps: Count = Field(description="Decode steps that were measured.")
    best: Depth | None = Field(
        default=None, description="Depth to change to; absent where what is done now should stay."
    )
    rates: dict[str, Number] = Field(
        max_length=MAX_CANDIDATES,
        description="Depth to tokens per second of a request, as expected.",
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
    bands: list[BandRates] | None = Field(
        default=None, max_length=16, description="What it rests on, by band of batch sizes."
    )
    patch_hint: Annotated[str, StringConstraints(max_length=4096)] = Field(
        description="Command that puts it into the spec."
    )


class ArmShown(ResourceRecord):
    """What was seen of one arm of a trial."""

    role: Literal["Baseline", "Candidate"] = Field(description="Old or new configuration.")
    config_hash: Hash = Field(description="Configuration of its pods.")
    table_hash: Hash = Field(default="", description="Table by which they choose depths.")
    pods: list[Annotated[str, StringConstraints(max_length=253)]] | None = Field(
        default=None, max_length=MAX_PODS, description="Pods that are in it now."
    )
    requests: Count = Field(default=0, description="Requests that count.")
    tokens: Count = Field(default=0, description="Tokens of those requests.")
    accept_length: Number | None = Field(
        default=None, description="Tokens per decode step, the bonus token included."
    )
    seconds_per_token: Number | None = Field(default=None, description="Decode seconds per token.")
    failed: Count = Field(default=0, description="Requests that failed.")


class StratumShown(ResourceRecord):
    """Requests of one kind in both arms."""

    name: Annotated[str, StringConstraints(max_length=128)] = Field(
        description="Batch size, sampling, grammar, prompt length and label."
    )
    baseline_requests: Count = Field(description="Requests of the old configuration.")
    candidate_requests: Count = Field(description="Requests of the new one.")


class IntervalStatus(ResourceRecord):
    """The relative gain of the candidate, and the interval that it lies in at any time."""

    gain: Number = Field(description="Decode time per token that the candidate saves, estimated.")
    low: Number = Field(description="Lower end.")
    high: Number = Field(description="Upper end.")


class TrialStatus(ResourceRecord):
    """The trial that runs."""

    name: Annotated[str, StringConstraints(max_length=253)] = Field(
        default="", description="Its SpecDecodeTrial; empty where there is none."
    )

    id: Hash = Field(description="Hash of what is tried; annotations name it.")
    kind: TrialKind = Field(description="How it is tried.")
    origin: Literal["Edit", "Recommendation", "User"] = Field(description="Who asked for it.")
    phase: Literal["Preparing", "WarmingUp", "Measuring", "Paused", "Promoting", "RollingBack"] = (
        Field(description="How far it is.")
    )
    started_at: Time = Field(description="When it began.")
    measured_seconds: Count = Field(default=0, description="Time that was measured.")
    arms: list[ArmShown] = Field(max_length=2, description="Old and new configuration.")
    interval: IntervalStatus | None = Field(default=None, description="What is known of the gain.")
    hold_reason: Sentence = Field(default="", description="Why there is no verdict yet.")


class HistoryEntry(ResourceRecord):
    """A trial that ended, with the evidence of its verdict."""

    name: Annotated[str, StringConstraints(max_length=253)] = Field(
        default="", description="Its SpecDecodeTrial; empty where there is none."
    )

    id: Hash = Field(description="Hash of what was tried.")
    kind: TrialKind = Field(description="How it was tried.")
    origin: Literal["Edit", "Recommendation", "User"] = Field(description="Who asked for it.")
    verdict: TrialVerdict = Field(description="What became of it.")
    reason: Annotated[str, StringConstraints(max_length=64)] = Field(
        description="Why, in one word for programs."
    )
    message: Sentence = Field(default="", description="Why, in a sentence for people.")
    started_at: Time = Field(description="When it began.")
    ended_at: Time = Field(description="When the verdict was given.")
    measured_seconds: Count = Field(default=0, description="Time that was measured.")
    arms: list[ArmShown] = Field(max_length=2, description="Old and new configuration.")
    interval: IntervalStatus | None = Field(default=None, description="What was known of the gain.")
    strata: list[StratumShown] | None = Field(
        default=None, max_length=MAX_STRATA, description="Requests by kind, the commonest first."
    )
    evidence: Annotated[str, StringConstraints(max_length=MAX_EVIDENCE)] | None = Field(
        default=None,
        description="What the judge was given, as JSON: specdecode-operator replay judges again.",
    )


class ExplorationStatus(ResourceRecord):
    """What trials of the operator's own cost, and when the next one may start."""

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


class RolloutRequest(ResourceRecord):
    """What a person asked of a trial by annotation, and what came of it."""

    verb: Literal["pause", "resume", "promote", "abort"] = Field(description="What was asked.")
    id: Hash = Field(description="Id of the trial that it names.")
    is_done: bool = Field(description="Whether there was such a trial, or such an edit.")
    message: Sentence = Field(default="", description="What came of it, in a sentence.")


class LastTrial(ResourceRecord):
    """The latest trial that ended; the SpecDecodeTrial has the evidence."""

    name: TrialName = Field(description="Name of the SpecDecodeTrial.")
    verdict: Annotated[str, StringConstraints(max_length=32)] = Field(
        description="Verdict of the trial."
    )
    reason: Annotated[str, StringConstraints(max_length=64)] = Field(
        default="", description="Reason of the verdict, in one word for programs."
    )
    ended_at: Time = Field(description="When the verdict was given.")


class Effective(ResourceRecord):
    """The configuration in force, and why it is not the spec's where it is not."""

    revision: TrialName | None = Field(
        default=None, description="ControllerRevision with the configuration in force."
    )
    config_hash: Hash = Field(description="Configuration of the serving pods.")
    table_hash: Hash = Field(default="", description="Table by which they choose depths.")
    table: TableShown | None = Field(
        default=None, description="The table, where it is not the spec's."
    )
    reason: Literal["FollowsSpec", "Promoted", "Guarded"] = Field(
        description="Why it is in force: FollowsSpec equals the spec, Promoted was put in force by "
        "a trial, Guarded precedes an edit that has not passed its trial."
    )
    message: Sentence = Field(default="", description="Why it differs from the spec.")
