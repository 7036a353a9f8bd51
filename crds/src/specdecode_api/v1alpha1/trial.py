"""A trial: a candidate configuration that is compared with the configuration in force.

The operator creates trials for recommendations and guarded edits; people create them too. Numbers
of the status that are not counts are strings, because Kubernetes APIs contain no floats.
"""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, StringConstraints

from specdecode_api.base import ResourceRecord
from specdecode_api.duration import DURATION_PATTERN, duration_s
from specdecode_api.rules import Rule, irreversible, unchangeable
from specdecode_api.v1alpha1.rollout_status import (
    Count,
    Hash,
    IntervalStatus,
    Number,
    Sentence,
    Time,
    TrialKind,
    TrialOrigin,
)
from specdecode_api.v1alpha1.scalars import Duration, FreeObject, Int, ObjectName, Percent
from specdecode_api.v1alpha1.spec import Metadata, PageSize

TrialPhase = Literal[
    "Pending",
    "Preparing",
    "WarmingUp",
    "Measuring",
    "Paused",
    "Promoting",
    "RollingBack",
    "Ended",
]
TrialResult = Literal["Promoted", "Passed", "RolledBack", "Inconclusive", "Aborted", "Superseded"]

REFUSED: Final = (
    "model",
    "download",
    "serving",
    "lifecycle",
    "updateStrategy",
    "replicas",
    "parallelism",
    "resources",
    "template",
    "rollout",
)
"""Fields of a deployment's spec that no candidate may change."""

_REFUSAL: Final = "Refused: edit the SpecDecodeDeployment instead."


class Candidate(ResourceRecord):
    """A JSON merge patch (RFC 7386) of the spec in force; lists are replaced as a whole."""

    speculation: FreeObject | None = Field(
        default=None,
        description="Changes of spec.speculation: draft, topk, table and the like; null removes a "
        "field.",
    )
    page_size: PageSize | None = Field(default=None, description="New spec.pageSize.")
    engine: FreeObject | None = Field(
        default=None,
        description="Changes of spec.engine: image, kvCache, scheduler and the like; null removes "
        "a field.",
    )
    # Fields of their own, because the server drops unknown fields before it evaluates rules.
    model: FreeObject | None = Field(default=None, description=_REFUSAL)
    download: FreeObject | None = Field(default=None, description=_REFUSAL)
    serving: FreeObject | None = Field(default=None, description=_REFUSAL)
    lifecycle: FreeObject | None = Field(default=None, description=_REFUSAL)
    update_strategy: FreeObject | None = Field(default=None, description=_REFUSAL)
    replicas: Int | None = Field(default=None, description=_REFUSAL)
    parallelism: FreeObject | None = Field(default=None, description=_REFUSAL)
    resources: FreeObject | None = Field(default=None, description=_REFUSAL)
    template: FreeObject | None = Field(default=None, description=_REFUSAL)
    rollout: FreeObject | None = Field(default=None, description=_REFUSAL)

    rules: ClassVar[tuple["Rule[Candidate]", ...]] = (
        Rule(
            cel=" && ".join(f"!has(self.{field})" for field in REFUSED),
            holds=lambda it: not it.refused_fields,
            message="a trial can change speculation, pageSize and engine only; remove "
            f"{', '.join(REFUSED)} and edit the SpecDecodeDeployment instead",
            reason="FieldValueForbidden",
        ),
        Rule(
            cel="has(self.speculation) || has(self.pageSize) || has(self.engine) || "
            + " || ".join(f"has(self.{field})" for field in REFUSED),
            holds=lambda it: bool(it.model_fields_set),
            message="there is nothing to try: set speculation, pageSize or engine",
            reason="FieldValueRequired",
        ),
    )

    @property
    def refused_fields(self) -> set[str]:
        """Names of the set fields that belong to the deployment."""
        return set(self.model_dump(by_alias=True, exclude_none=True)) & set(REFUSED)


class TrialGuard(ResourceRecord):
    """What this trial has to show; what is absent is taken from the deployment's rollout.guard."""

    min_gain: Percent | None = Field(
        default=None, description="Least gain in decode time per token."
    )
    margin: Percent | None = Field(
        default=None, description="Accepted loss of a guarded edit and of the time to first token."
    )
    min_requests: Int | None = Field(
        default=None, ge=2, le=1_000_000, description="Requests of each arm before a verdict."
    )
    min_stratum_requests: Int | None = Field(
        default=None,
        ge=2,
        le=100_000,
        description="Requests of each arm that a stratum needs to be compared.",
    )
    min_duration: Duration | None = Field(
        default=None, description="Shortest measurement before a verdict, alarms excepted."
    )
    max_duration: Duration | None = Field(
        default=None, description="Longest measurement; afterwards the trial is inconclusive."
    )
    warm_up: Duration | None = Field(
        default=None, description="Time after an arm's start that is not counted."
    )

    rules: ClassVar[tuple["Rule[TrialGuard]", ...]] = (
        Rule(
            cel="!has(self.minDuration) || !has(self.maxDuration) || "
            f"!self.minDuration.matches('^{DURATION_PATTERN}$') || "
            f"!self.maxDuration.matches('^{DURATION_PATTERN}$') || "
            "duration(self.minDuration) < duration(self.maxDuration)",
            holds=lambda it: (
                it.min_duration is None
                or it.max_duration is None
                or duration_s(it.min_duration) < duration_s(it.max_duration)
            ),
            message="minDuration must be below maxDuration: raise maxDuration or lower minDuration",
            field="maxDuration",
        ),
        Rule(
            cel="!has(self.maxDuration) || "
            f"!self.maxDuration.matches('^{DURATION_PATTERN}$') || "
            "duration(self.maxDuration) > duration('0s')",
            holds=lambda it: it.max_duration is None or duration_s(it.max_duration) > 0,
            message="no minDuration is below a maxDuration of 0: raise maxDuration, or remove it",
            field="maxDuration",
        ),
    )


_NEW_TRIAL: Final = "create another SpecDecodeTrial"


class SpecDecodeTrialSpec(ResourceRecord):
    """What to try, and how."""

    deployment: ObjectName = Field(
        description="Name of the SpecDecodeDeployment in the same namespace; immutable."
    )
    candidate: Candidate = Field(
        description="JSON merge patch of the configuration in force that is tried; immutable."
    )
    origin: TrialOrigin = Field(
        default="User",
        description="Who asked for the trial: a user, a guarded edit of the deployment, or a "
        "recommendation; immutable.",
    )
    strategy: Literal["Auto", "Hot", "Canary", "Switchback"] = Field(
        default="Auto",
        description="Hot exchanges tables of running engines, Canary starts additional pods, "
        "Switchback restarts the same pods in turns; Auto chooses. What the candidate does not "
        "allow is refused with a reason in the status. Immutable.",
    )
    guard: TrialGuard | None = Field(
        default=None,
        description="Differences from the deployment's rollout.guard, with which they must agree: "
        "a trial with a minDuration that is not below maxDuration is refused with reason "
        "InvalidCandidate, or ends as Superseded where a later edit of the deployment causes it. "
        "Immutable.",
    )
    exploration_budget: Literal["Enforce", "Exempt"] = Field(
        default="Enforce",
        description="Enforce refuses the trial if its longest duration does not fit into the "
        "deployment's rollout.exploration.maxCandidateShare; Exempt begins it all the same. Its "
        "cost counts in both cases. Immutable.",
    )
    on_success: Literal["Promote", "Report"] = Field(
        default="Report",
        description="What follows a trial that passes: Promote puts the candidate in force, Report "
        "waits for promote. Immutable.",
    )
    state: Literal["Running", "Paused", "Aborted"] = Field(
        default="Running",
        description="Paused keeps the trial but gives every pod the configuration in force; "
        "Aborted ends it and is final.",
    )
    promote: bool = Field(
        default=False,
        strict=True,
        description="Puts the candidate in force, whatever is measured; cannot be withdrawn. Not "
        "together with state: Aborted, nor after an end that it cannot change: Promoted, Aborted, "
        "or any end of the trial of a recommendation.",
    )

    rules: ClassVar[tuple["Rule[SpecDecodeTrialSpec]", ...]] = (
        *(
            unchangeable(field, _NEW_TRIAL)
            for field in (
                "deployment",
                "candidate",
                "strategy",
                "origin",
                "explorationBudget",
                "onSuccess",
            )
        ),
        unchangeable("guard", _NEW_TRIAL, is_optional=True),
        Rule(
            cel="!(self.promote && self.state == 'Aborted')",
            holds=lambda it: not (it.promote and it.state == "Aborted"),
            message="promote and state: Aborted contradict each other: an aborted trial is not "
            "promoted, and a promoted one is not aborted; keep one of them",
            field="promote",
        ),
        irreversible(
            "state",
            "oldSelf.state != 'Aborted' || self.state == 'Aborted'",
            f"an aborted trial cannot be resumed: {_NEW_TRIAL}",
        ),
        irreversible(
            "promote",
            "!oldSelf.promote || self.promote",
            "a promotion cannot be withdrawn: `kubectl specdecode rollback` returns to an earlier "
            "revision",
        ),
    )


class TrialArm(ResourceRecord):
    """What was measured of one configuration."""

    config_hash: Hash = Field(description="Configuration of its pods.")
    table_hash: Hash = Field(default="", description="Speculation table of its pods.")
    requests: Count = Field(default=0, description="Requests that count.")
    tokens: Count = Field(default=0, description="Tokens of those requests.")
    accept_length: Number | None = Field(
        default=None, description="Tokens per decode step, the bonus token included."
    )
    seconds_per_token: Number | None = Field(default=None, description="Decode seconds per token.")
    failed: Count = Field(default=0, description="Requests that failed.")


class BlockStatus(ResourceRecord):
    """The period of a Switchback that restarts its pods."""

    pair: Count = Field(description="Number of its pair; the first is 0.")
    arm: Literal["Baseline", "Candidate"] = Field(description="Configuration of all pods.")
    since: Time | None = Field(default=None, description="When its pods were asked for.")
    counted_since: Time | None = Field(
        default=None, description="When all its pods served and warmUp was over."
    )
    next_change: Time | None = Field(
        default=None, description="When it ends; known once it is counted."
    )


class SpecDecodeTrialStatus(ResourceRecord):
    """Progress and result; written by the operator."""

    observed_generation: Annotated[Int, Field(ge=0)] | None = Field(
        default=None, description="Generation of the trial that this status describes."
    )
    phase: TrialPhase | None = Field(default=None, description="Progress of the trial.")
    strategy: TrialKind | None = Field(default=None, description="Strategy in use.")
    started_at: Time | None = Field(default=None, description="When the trial began.")
    ended_at: Time | None = Field(default=None, description="When the trial ended.")
    measured_seconds: Count | None = Field(default=None, description="Measured time.")
    pairs: Count | None = Field(default=None, description="Complete pairs of blocks.")
    block: BlockStatus | None = Field(
        default=None, description="What all pods run now, where the trial restarts them."
    )
    verdict: TrialResult | None = Field(
        default=None,
        description="Result: Promoted is in force, Passed waits for promote, the others leave the "
        "configuration in force as it was.",
    )
    reason: Annotated[str, StringConstraints(max_length=64)] | None = Field(
        default=None, description="Reason of the phase or the verdict, in one word for programs."
    )
    message: Sentence | None = Field(
        default=None, description="Reason of the phase or the verdict, in a sentence."
    )
    revision: Annotated[str, StringConstraints(max_length=253)] | None = Field(
        default=None, description="ControllerRevision that a promotion put in force."
    )
    baseline: TrialArm | None = Field(default=None, description="The configuration in force.")
    candidate: TrialArm | None = Field(default=None, description="The candidate.")
    interval: IntervalStatus | None = Field(
        default=None, description="Relative gain of the candidate with its confidence sequence."
    )
    evidence: FreeObject | None = Field(
        default=None,
        description="Measurements by which the verdict was reached; `specdecode-operator replay` "
        "repeats it.",
    )
    state: FreeObject | None = Field(
        default=None, description="State by which the operator continues the trial after a restart."
    )


class SpecDecodeTrial(ResourceRecord):
    """A trial of a candidate configuration against the configuration in force."""

    api_version: Literal["specdecode.io/v1alpha1"] = "specdecode.io/v1alpha1"
    kind: Literal["SpecDecodeTrial"] = "SpecDecodeTrial"
    metadata: Metadata
    spec: SpecDecodeTrialSpec = Field(description="What to try, and how.")
    status: SpecDecodeTrialStatus | None = Field(
        default=None, description="Progress and result; written by the operator."
    )

    rules: ClassVar[tuple["Rule[SpecDecodeTrial]", ...]] = (
        irreversible(
            "spec.promote",
            "!self.spec.promote || oldSelf.spec.promote || !has(self.status) || "
            "!has(self.status.verdict) || !(self.status.verdict in ['Promoted', 'Aborted']) && "
            "self.spec.origin != 'Recommendation'",
            "this trial has ended, and a promotion would change nothing: it was promoted or "
            f"aborted, or tried a recommendation; {_NEW_TRIAL}",
        ),
    )
