"""The speculation table: draft steps by range of batch sizes, and the policy that chooses."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from specdecode_api.base import HOT, RESTART, HotRecord, ResourceRecord, map_by
from specdecode_api.rules import RULE_ERROR, Checked, Rule, or_default
from specdecode_api.speculation import (
    MAX_BATCH_SIZE,
    MAX_CANDIDATES,
    MAX_DRAFT_TOKENS,
    MAX_INTER_TOKEN_MS,
    MAX_STEPS,
    MAX_TABLE_ENTRIES,
    Algorithm,
    Objective,
    Policy,
)
from specdecode_api.table import candidates, default_table
from specdecode_api.v1alpha1.scalars import Float, Int

Steps = Annotated[Int, Field(ge=0, le=MAX_STEPS)]

CandidateSteps = Annotated[
    list[Steps],
    Checked(
        Rule(
            cel="self.all(x, self.exists_one(y, y == x))",
            holds=lambda steps: len(set(steps)) == len(steps),
            message="every value may occur once in candidateSteps: remove the repeated one",
        )
    ),
]


class BatchSizeEntry(HotRecord):
    """Draft steps that a range of batch sizes may use."""

    from_: Int = Field(
        alias="from",
        ge=1,
        le=MAX_BATCH_SIZE,
        json_schema_extra=RESTART,
        description="Lower bound of the range, which ends before the next entry; smaller batches "
        "use the first entry.",
    )
    candidate_steps: CandidateSteps = Field(
        min_length=1,
        max_length=MAX_CANDIDATES,
        json_schema_extra=RESTART,
        description="Draft steps to choose from; 0 decodes without a draft.",
    )
    verify_tokens: Int | None = Field(
        default=None,
        ge=1,
        le=MAX_DRAFT_TOKENS - 1,
        description="Drafted tokens that a step verifies, on average over its requests; the draft "
        "model's confidence head or probabilities divide them among the requests. Where absent, "
        "all that are drafted. Draft models only (no fallback), not with policy Ema.",
    )
    up_hysteresis: Float = Field(
        default=0.0,
        ge=-16,
        le=16,
        description="Added to the accept length above which draft steps rise (policy Ema).",
    )
    down_hysteresis: Float = Field(
        default=-0.25,
        ge=-16,
        le=16,
        description="Added to the accept length below which draft steps fall (policy Ema).",
    )
    ceiling_coeff: Float = Field(
        default=0.0,
        ge=0,
        le=16,
        description="Caps draft steps at this multiple of the accept length (policy Ema); "
        "0 sets no cap.",
    )
    ema_alpha: Float = Field(
        default=0.2,
        gt=0,
        le=1,
        description="Weight of the latest step in the moving average (policy Ema).",
    )
    update_interval: Int = Field(
        default=5, ge=1, le=100_000, description="Steps between two decisions (policy Ema)."
    )
    warmup_batches: Int = Field(
        default=10, ge=0, le=100_000, description="Steps before the first decision (policy Ema)."
    )


def _different_bounds(entries: list[BatchSizeEntry]) -> list[BatchSizeEntry]:
    """Refuse what the API server refuses in a list of type map."""
    found: set[int] = set()
    for at, entry in enumerate(entries):
        if entry.from_ in found:
            text = f"Duplicate value: from {entry.from_} occurs twice: keep one of the entries"
            context = {"text": text, "refusals": [(str(at), text)]}
            raise PydanticCustomError(RULE_ERROR, "{text}", context)
        found.add(entry.from_)
    return entries


PolicyName = Literal["Goodput", "Ema", "Static"]

ObjectiveName = Literal["Throughput", "InterTokenLatency"]
_OBJECTIVES: Final[Mapping[ObjectiveName, Objective]] = {
    "Throughput": Objective.THROUGHPUT,
    "InterTokenLatency": Objective.INTER_TOKEN_LATENCY,
}
_IS_THROUGHPUT: Final = f"{or_default('objective', 'Throughput')} == 'Throughput'"


class Adaptive(ResourceRecord):
    """How the draft steps of a step are chosen."""

    policy: PolicyName = Field(
        default="Goodput",
        description="Goodput maximises tokens per second; Ema follows accept lengths; Static keeps "
        "numSteps, within what batchSizes allows. A spec without adaptive is Static.",
    )
    batch_sizes: Annotated[list[BatchSizeEntry], AfterValidator(_different_bounds)] = Field(
        default=[],
        max_length=MAX_TABLE_ENTRIES,
        description="The speculation table: draft steps by range of batch sizes. Policies Ema and "
        "Goodput have a default table.",
        json_schema_extra=RESTART | map_by("from"),
    )
    objective: ObjectiveName = Field(
        default="Throughput",
        description="What policy Goodput maximises. Throughput: tokens per second. "
        "InterTokenLatency: tokens per second among the draft steps whose decode step takes "
        "maxInterTokenMs at most.",
        json_schema_extra=HOT,
    )
    max_inter_token_ms: Float | None = Field(
        default=None,
        gt=0,
        le=MAX_INTER_TOKEN_MS,
        description="Longest gap between two events of a stream in milliseconds, which is the time "
        "of a decode step; objective InterTokenLatency only, which needs it.",
        json_schema_extra=HOT,
    )

    rules: ClassVar[tuple["Rule[Adaptive]", ...]] = (
        Rule(
            cel=f"{_IS_THROUGHPUT} || {or_default('policy', 'Goodput')} == 'Goodput'",
            holds=lambda it: it.objective == "Throughput" or it.policy == "Goodput",
            message="only policy Goodput knows what steps cost: remove objective and "
            "maxInterTokenMs, or choose policy Goodput",
            shows="policy",
            absent="Goodput",
            field="objective",
            reason="FieldValueForbidden",
        ),
        Rule(
            cel=f"{_IS_THROUGHPUT} || has(self.maxInterTokenMs)",
            holds=lambda it: it.objective == "Throughput" or it.max_inter_token_ms is not None,
            message="objective InterTokenLatency has no limit: add maxInterTokenMs",
            field="maxInterTokenMs",
            reason="FieldValueRequired",
        ),
        Rule(
            cel=f"!has(self.maxInterTokenMs) || !({_IS_THROUGHPUT})",
            holds=lambda it: it.max_inter_token_ms is None or it.objective != "Throughput",
            message="objective Throughput has no limit: remove maxInterTokenMs, or set objective "
            "InterTokenLatency",
            field="maxInterTokenMs",
            reason="FieldValueForbidden",
        ),
    )

    @property
    def engine_objective(self) -> Objective:
        """The objective as the engine names it."""
        return _OBJECTIVES[self.objective]

    @property
    def engine_policy(self) -> Policy:
        """The policy as the engine names it."""
        return Policy(self.policy.lower())

    @property
    def table(self) -> Mapping[str, BatchSizeEntry]:
        """The entries by their lower bound in digits, ascending, as the engine reads them."""
        ascending = sorted(self.batch_sizes, key=lambda entry: entry.from_)
        return {str(entry.from_): entry for entry in ascending}

    def candidates(self, algorithm: Algorithm) -> tuple[int, ...]:
        """List the draft steps of the table, else of the default one, ascending."""
        return candidates(
            self.table or default_table(self.engine_policy, algorithm.most_default_steps)
        )
