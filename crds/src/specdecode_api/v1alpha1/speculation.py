"""How tokens are drafted: the fields, the rules between them, and their defaults."""

from collections.abc import Callable, Iterable
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, WithJsonSchema

from specdecode_api.base import RESTART, ResourceRecord
from specdecode_api.cel_text import number_text, numbers_text
from specdecode_api.rules import Ending, Rule, or_default
from specdecode_api.speculation import (
    DEFAULT_STEPS,
    MAX_DRAFT_TOKENS,
    MAX_STEPS,
    MAX_TOPK,
    Algorithm,
    Policy,
    drafted_tokens,
    max_tree_tokens,
)
from specdecode_api.table import (
    candidates,
    default_table,
    resource_table_warnings,
    undrafted_error,
    verify_tokens_error,
)
from specdecode_api.v1alpha1.model import DraftSpec
from specdecode_api.v1alpha1.ngram import NgramSpec
from specdecode_api.v1alpha1.scalars import Int
from specdecode_api.v1alpha1.table import Adaptive

_ALGORITHM: Final = or_default("algorithm", "NONE")
_TOPK: Final = or_default("topk", 1)
_POLICY: Final = (
    "(has(self.adaptive) ? (has(self.adaptive.policy) ? self.adaptive.policy : 'Goodput') : "
    "'Static')"
)
_NO_TABLE: Final = f"size({or_default('adaptive.batchSizes', [])}) == 0"
_STEPS: Final = f"(has(self.numSteps) ? self.numSteps : {DEFAULT_STEPS})"
_HAS_WIDTH: Final = (
    f"has(self.numDraftTokens) && {_STEPS} > 0 && (has(self.numSteps) || {_NO_TABLE})"
)

_NUM_STEPS_TEXT: Final = f"'numSteps is ' + {number_text('self.numSteps', MAX_STEPS)}"
_CANDIDATES_TEXT: Final = numbers_text(
    range(MAX_STEPS + 1),
    lambda steps: f"self.adaptive.batchSizes.exists(e, {steps} in e.candidateSteps)",
    lambda steps: f"self.adaptive.batchSizes.exists(e, e.candidateSteps.exists(s, s < {steps}))",
)
_DRAFTS_ENOUGH: Final = (
    "(has(self.numDraftTokens) && has(self.numSteps) && s == self.numSteps ? "
    f"e.verifyTokens < self.numDraftTokens : s > 0 && e.verifyTokens <= {_TOPK} * s && "
    f"e.verifyTokens <= {_TOPK} + (s - 1) * {_TOPK} * {_TOPK})"
)

AlgorithmName = Annotated[
    Algorithm, WithJsonSchema({"enum": list(map(str, Algorithm)), "type": "string"})
]


def _is_one_of(algorithms: Iterable[Algorithm]) -> str:
    """Return the CEL condition that the algorithm is one of these."""
    return f"{_ALGORITHM} in {list(map(str, algorithms))}"


def _unused_by_none(
    field: str, cel: str, holds: Callable[["Speculation"], bool]
) -> "Rule[Speculation]":
    """Refuse what plain decoding has no use for."""
    return Rule(
        cel=f"{_ALGORITHM} != 'NONE' || {cel}",
        holds=lambda speculation: speculation.algorithm is not Algorithm.NONE or holds(speculation),
        message=f"algorithm NONE does not draft: remove {field}, or choose an algorithm",
        field=field,
        reason="FieldValueForbidden",
    )


def _in_default_table(policy: Policy, most_steps: int) -> "Rule[Speculation]":
    """Hold numSteps to the table that an adaptive policy has where none is written.

    Args:
        most_steps: the rule is for algorithms whose default tables have so many.
    """
    candidate_steps = list(candidates(default_table(policy, most_steps)))
    name = policy.value.capitalize()
    shown = ", ".join(map(str, candidate_steps))
    drafting = [one for one in Algorithm if one is not Algorithm.NONE]
    algorithms = [one for one in drafting if one.most_default_steps == most_steps]
    return Rule(
        cel=f"!({_is_one_of(algorithms)}) || !has(self.numSteps) || !({_NO_TABLE}) || "
        f"{_POLICY} != '{name}' || self.numSteps in {candidate_steps}",
        holds=lambda it: (
            it.algorithm not in algorithms
            or it.num_steps is None
            or bool(it.adaptive.batch_sizes)
            or it.adaptive.policy != name
            or it.num_steps in candidate_steps
        ),
        message=f"policy {name} without adaptive.batchSizes has a default table of the draft "
        f"steps {shown}: use one of them, leave numSteps out or write adaptive.batchSizes",
        field="numSteps",
        ends=Ending(_NUM_STEPS_TEXT, lambda it: f"numSteps is {it.num_steps}"),
    )


def _width_fits(it: "Speculation") -> bool:
    """Return whether numDraftTokens fits the tree; true where another rule already refuses it."""
    steps = DEFAULT_STEPS if it.num_steps is None else it.num_steps
    is_ambiguous = it.num_steps is None and it.adaptive.batch_sizes
    if it.num_draft_tokens is None or steps == 0 or is_ambiguous:
        return True
    if it.topk == 1:
        return it.num_draft_tokens == steps + 1
    return it.num_draft_tokens <= max_tree_tokens(it.topk, steps)


class Speculation(ResourceRecord):
    """How tokens are drafted."""

    algorithm: AlgorithmName = Field(
        default=Algorithm.NONE,
        description="Source of draft tokens; NONE decodes without a draft.",
    )
    draft: DraftSpec | None = Field(
        default=None,
        description="The draft's checkpoint. NONE and NGRAM take none. Without it, MTP and "
        "MTP_CHAIN draft with the modules in the target's checkpoint. The others need one.",
        json_schema_extra=RESTART,
    )
    fallback: Literal["NGRAM"] | None = Field(
        default=None,
        description="NGRAM: a request in which that is expected to have more draft tokens accepted "
        "verifies those instead of the draft model's. Not for NONE and NGRAM.",
    )
    ngram: NgramSpec | None = Field(
        default=None,
        description="Drafting without a model; algorithm or fallback NGRAM only. Its defaults "
        "where absent.",
        json_schema_extra=RESTART,
    )
    topk: Int = Field(
        default=1,
        ge=1,
        le=MAX_TOPK,
        description="Children of a node of the draft tree; 1 drafts a chain.",
    )
    num_steps: Int | None = Field(
        default=None,
        ge=0,
        le=MAX_STEPS,
        description="Draft steps at start; where absent those that the draft's authors propose, "
        f"else {DEFAULT_STEPS}, or the middle candidate of a table without {DEFAULT_STEPS}.",
    )
    num_draft_tokens: Int | None = Field(
        default=None,
        ge=2,
        le=MAX_DRAFT_TOKENS,
        description="Nodes verified in a step, root included; topk * numSteps + 1 where absent "
        "(fewer where the tree has fewer).",
    )
    adaptive: Adaptive = Field(
        default=Adaptive(policy="Static"),
        description="Draft steps by batch size and acceptance; policy Static where absent.",
    )

    rules: ClassVar[tuple["Rule[Speculation]", ...]] = (
        Rule(
            cel=f"!({_is_one_of(one for one in Algorithm if one.needs_draft)}) || has(self.draft)",
            holds=lambda it: not it.algorithm.needs_draft or it.draft is not None,
            message="this algorithm drafts with a checkpoint of its own: add draft.uri",
            shows="algorithm",
            absent="NONE",
            field="draft",
            reason="FieldValueRequired",
        ),
        Rule(
            cel=f"!has(self.draft) || {_is_one_of(one for one in Algorithm if one.takes_draft)}",
            holds=lambda it: it.draft is None or it.algorithm.takes_draft,
            message="this algorithm drafts without a checkpoint: remove draft, "
            "or choose an algorithm that uses one",
            shows="algorithm",
            absent="NONE",
            field="draft",
            reason="FieldValueForbidden",
        ),
        Rule(
            cel=f"!has(self.fallback) || {_is_one_of(one for one in Algorithm if one.takes_draft)}",
            holds=lambda it: it.fallback is None or it.algorithm.takes_draft,
            message="this algorithm has no draft model to stand in for: remove fallback, "
            "or choose an algorithm that drafts with a model",
            shows="algorithm",
            absent="NONE",
            field="fallback",
            reason="FieldValueForbidden",
        ),
        Rule(
            cel=f"!has(self.ngram) || has(self.fallback) || {_ALGORITHM} == 'NGRAM'",
            holds=lambda it: (
                it.ngram is None or it.fallback is not None or it.algorithm is Algorithm.NGRAM
            ),
            message="this algorithm does not read ngram: remove it, or use NGRAM as algorithm or "
            "fallback",
            shows="algorithm",
            absent="NONE",
            field="ngram",
            reason="FieldValueForbidden",
        ),
        _unused_by_none(
            "numSteps",
            "!has(self.numSteps) || self.numSteps == 0",
            lambda it: not it.num_steps,
        ),
        _unused_by_none("topk", f"{_TOPK} == 1", lambda it: it.topk == 1),
        Rule(
            cel=f"{_TOPK} == 1 || {_is_one_of(one for one in Algorithm if one.drafts_trees)}",
            holds=lambda it: it.topk == 1 or it.algorithm.drafts_trees,
            message="this algorithm drafts chains alone: set topk to 1, "
            "or choose an algorithm that drafts trees",
            shows="algorithm",
            absent="NONE",
            field="topk",
        ),
        _unused_by_none(
            "numDraftTokens", "!has(self.numDraftTokens)", lambda it: it.num_draft_tokens is None
        ),
        _unused_by_none("adaptive.batchSizes", _NO_TABLE, lambda it: not it.adaptive.batch_sizes),
        _unused_by_none(
            "adaptive.objective",
            f"{or_default('adaptive.objective', 'Throughput')} == 'Throughput'",
            lambda it: it.adaptive.objective == "Throughput",
        ),
        Rule(
            cel=f"{_NO_TABLE} || !self.adaptive.batchSizes.exists(e, has(e.verifyTokens)) || "
            f"(!has(self.fallback) && {_POLICY} != 'Ema' && "
            f"{_is_one_of(one for one in Algorithm if one.takes_draft)})",
            holds=lambda it: (
                verify_tokens_error(
                    it.adaptive.table,
                    it.adaptive.engine_policy,
                    it.algorithm,
                    has_fallback=it.fallback is not None,
                )
                is None
            ),
            message="verifyTokens is for a draft model alone: remove fallback, choose policy "
            "Goodput or Static and an algorithm that drafts with a model, or remove verifyTokens",
            shows="algorithm",
            absent="NONE",
            field="adaptive.batchSizes",
            reason="FieldValueForbidden",
        ),
        Rule(
            cel=f"!has(self.numSteps) || {_NO_TABLE} || "
            "self.adaptive.batchSizes.exists(e, self.numSteps in e.candidateSteps)",
            holds=lambda it: (
                it.num_steps is None
                or not it.adaptive.batch_sizes
                or it.num_steps in it.adaptive.candidates(it.algorithm)
            ),
            message="numSteps must be a candidate of adaptive.batchSizes: "
            "use one of them or leave numSteps out",
            field="numSteps",
            ends=Ending(
                f"{_NUM_STEPS_TEXT} + ', candidates are ' + {_CANDIDATES_TEXT}",
                lambda it: (
                    f"numSteps is {it.num_steps}, candidates are "
                    + ", ".join(map(str, it.adaptive.candidates(it.algorithm)))
                ),
            ),
        ),
        Rule(
            cel=f"{_NO_TABLE} || self.adaptive.batchSizes.all(e, !has(e.verifyTokens) || "
            f"e.candidateSteps.exists(s, {_DRAFTS_ENOUGH}))",
            holds=lambda it: undrafted_error(it.adaptive.table, it.drafted_tokens) is None,
            message="verifyTokens must not exceed the tokens that one of candidateSteps drafts, "
            "topk * numSteps at most: lower verifyTokens or remove it, or add more draft steps",
            field="adaptive.batchSizes",
        ),
        *(
            _in_default_table(policy, most_steps)
            for most_steps in sorted({one.most_default_steps for one in Algorithm})
            for policy in (Policy.EMA, Policy.GOODPUT)
        ),
        Rule(
            cel=f"!has(self.numDraftTokens) || {_STEPS} > 0",
            holds=lambda it: it.num_draft_tokens is None or it.num_steps != 0,
            message="numSteps 0 drafts nothing: remove numDraftTokens or raise numSteps",
            field="numDraftTokens",
            reason="FieldValueForbidden",
        ),
        Rule(
            cel=f"!has(self.numDraftTokens) || has(self.numSteps) || {_NO_TABLE}",
            holds=lambda it: (
                it.num_draft_tokens is None
                or it.num_steps is not None
                or not it.adaptive.batch_sizes
            ),
            message="numDraftTokens with adaptive.batchSizes applies to one numSteps: "
            "add numSteps or remove numDraftTokens",
            field="numSteps",
            reason="FieldValueRequired",
        ),
        Rule(
            cel=f"!({_HAS_WIDTH}) || {_TOPK} != 1 || self.numDraftTokens == {_STEPS} + 1",
            holds=lambda it: it.topk != 1 or _width_fits(it),
            message="topk 1 drafts a chain, so numDraftTokens must be numSteps + 1: "
            f"remove it (numSteps is {DEFAULT_STEPS} where absent)",
            field="numDraftTokens",
        ),
        Rule(
            cel=f"!({_HAS_WIDTH}) || {_TOPK} == 1 || self.numDraftTokens "
            f"<= 1 + {_TOPK} + ({_STEPS} - 1) * {_TOPK} * {_TOPK}",
            holds=lambda it: it.topk == 1 or _width_fits(it),
            message="numDraftTokens must not exceed the nodes of the tree, "
            "1 + topk + (numSteps - 1) * topk * topk: lower it or remove it "
            f"(numSteps is {DEFAULT_STEPS} where absent)",
            field="numDraftTokens",
        ),
    )

    @property
    def warnings(self) -> tuple[str, ...]:
        """What may be meant otherwise, in a table that is valid."""
        return resource_table_warnings(self.adaptive.table, self.adaptive.engine_policy)

    def drafted_tokens(self, num_steps: int) -> int:
        """Tokens that a request drafts in a step of `num_steps` draft steps."""
        if self.num_steps is None or self.num_draft_tokens is None:
            return drafted_tokens(self.topk, num_steps)
        return drafted_tokens(self.topk, num_steps, (self.num_steps, self.num_draft_tokens))
