"""Speculation in the boot file: algorithm, tree shape, policy, table."""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from specdecode_api.base import FileRecord
from specdecode_api.boot.ngram import NgramBoot
from specdecode_api.speculation import (
    DEFAULT_STEPS,
    MAX_INTER_TOKEN_MS,
    MAX_STEPS,
    MAX_TABLE_ENTRIES,
    MAX_TOPK,
    Algorithm,
    Fallback,
    Objective,
    Policy,
    drafted_tokens,
    effective_num_steps,
    max_tree_tokens,
)
from specdecode_api.table import (
    BatchSizeKey,
    TableEntry,
    candidates,
    default_table,
    launch_error,
    undrafted_error,
    verify_tokens_error,
)

CheckpointPath = Annotated[str, StringConstraints(min_length=1, max_length=1024)]


class SpeculationBoot(FileRecord):
    """Algorithm, draft checkpoint, tree shape, and policy for draft steps."""

    algorithm: Algorithm = Field(
        default=Algorithm.NONE, description="Source of draft tokens; NONE decodes without a draft."
    )
    draft_path: CheckpointPath | None = Field(
        default=None,
        description="Folder of the draft's checkpoint; not for NONE and NGRAM. Without it, MTP and "
        "MTP_CHAIN draft with the modules in the target's checkpoint.",
    )
    topk: int = Field(
        default=1,
        ge=1,
        le=MAX_TOPK,
        description="Children per node of the draft tree; 1 drafts a chain.",
    )
    num_steps: int | None = Field(
        default=None,
        ge=0,
        le=MAX_STEPS,
        description="Draft steps at start; if null those that the draft proposes, else "
        f"{DEFAULT_STEPS} or the middle candidate of a table without {DEFAULT_STEPS}.",
    )
    num_draft_tokens: int | None = Field(
        default=None,
        description="Nodes verified in a step at num_steps, root included; derived if null.",
    )
    fallback: Fallback | None = Field(
        default=None,
        description="NGRAM: a request in which that is expected to have more draft tokens accepted "
        "verifies those instead of the draft model's; not for NONE and NGRAM.",
    )
    ngram: NgramBoot = Field(
        default=NgramBoot(),
        description="Drafting without a model; algorithm or fallback NGRAM only.",
    )
    policy: Policy = Field(
        default=Policy.STATIC, description="Policy that chooses the draft steps."
    )
    objective: Objective = Field(
        default=Objective.THROUGHPUT,
        description="What policy goodput maximizes: tokens per second, of all decode steps or of "
        "those that take max_inter_token_ms at most.",
    )
    max_inter_token_ms: float | None = Field(
        default=None,
        gt=0,
        le=MAX_INTER_TOKEN_MS,
        description="Longest gap between two events of a stream in milliseconds, which is the time "
        "of a decode step; objective inter_token_latency only, which needs it.",
    )
    table: dict[BatchSizeKey, TableEntry] = Field(
        default={},
        max_length=MAX_TABLE_ENTRIES,
        description="Lower bound of a range of batch sizes to its candidate draft steps; if empty, "
        "policies ema and goodput use a default table.",
    )
    table_path: CheckpointPath | None = Field(
        default=None,
        description="JSON file with the table, instead of table: in this format, that of the "
        "custom resource, or SGLang's --speculative-adaptive-config.",
    )
    tuned: dict[BatchSizeKey, TableEntry] = Field(
        default={},
        max_length=MAX_TABLE_ENTRIES,
        description="Table that was learned while serving, used instead of table if table has all "
        "of its draft steps: the engine prepares the draft steps of table at start.",
    )
    profile_seconds: float = Field(
        default=5.0,
        ge=0,
        le=600,
        description="Time budget at start for measuring the cost of steps (policy goodput); 0 "
        "measures nothing.",
    )

    @property
    def entries(self) -> Mapping[str, TableEntry]:
        """The table in use: the given one, else the policy's default; may be empty."""
        assert self.table_path is None, "the file is read first, see `with_table`"
        if self.algorithm is Algorithm.NONE:
            return {}
        return self.table or default_table(self.policy, self.algorithm.most_default_steps)

    @property
    def max_step_s(self) -> float:
        """Limit of a decode step's time; infinite under objective throughput."""
        return math.inf if self.max_inter_token_ms is None else self.max_inter_token_ms / 1000

    @property
    def usual_steps(self) -> int:
        """Draft steps at start where the draft proposes none."""
        return effective_num_steps(self.algorithm, self.num_steps, candidates(self.entries))

    @property
    def tuned_error(self) -> str | None:
        """Why the tuned table is not used, or None if it is used or absent."""
        known = {self.usual_steps, *candidates(self.entries)}
        unknown = sorted(set(candidates(self.tuned)) - known)
        if not unknown:
            return None
        return (
            f"tuned: candidate_steps {unknown} are not among {sorted(known)}, the draft steps that "
            "are prepared at start: use only those, or remove tuned"
        )

    def verify_tokens_error(self, entries: Mapping[str, TableEntry]) -> str | None:
        """Return the error if entries bound the verified tokens by a bound that cannot hold.

        That is where nothing can divide them, and where no more are drafted.
        """
        has_fallback = self.fallback is not None
        return verify_tokens_error(
            entries, self.policy, self.algorithm, has_fallback=has_fallback
        ) or undrafted_error(entries, self.drafted_tokens)

    def drafted_tokens(self, num_steps: int) -> int:
        """Tokens that a request drafts in a step of `num_steps` draft steps."""
        width = self.num_draft_tokens
        at_start = None if width is None else (self.usual_steps, width)
        return drafted_tokens(self.topk, num_steps, at_start)

    def with_table(self, entries: Mapping[str, TableEntry]) -> "SpeculationBoot":
        """Return a copy with the table that was read from `table_path`, and without the path."""
        return self.model_copy(update={"table": dict(entries), "table_path": None})

    @model_validator(mode="after")
    def _check(self) -> "SpeculationBoot":
        errors = tuple(self._errors())
        if errors:
            raise ValueError("; ".join(errors))
        return self

    def _errors(self) -> Iterator[str]:
        if self.algorithm.needs_draft and self.draft_path is None:
            yield f"algorithm {self.algorithm} needs draft_path: add it"
        if not self.algorithm.takes_draft and self.draft_path is not None:
            yield f"algorithm {self.algorithm} takes no draft_path: remove it"
        if self.fallback is not None and not self.algorithm.takes_draft:
            yield (
                f"algorithm {self.algorithm} has no draft model to stand in for: remove fallback, "
                "or choose an algorithm that drafts with a model"
            )
        is_read = self.fallback is not None or self.algorithm is Algorithm.NGRAM
        if not is_read and self.ngram != NgramBoot():
            yield (
                f"algorithm {self.algorithm} does not read ngram: remove it, or use NGRAM as "
                "algorithm or fallback"
            )
        if not self.algorithm.drafts_trees and self.topk > 1:
            yield f"algorithm {self.algorithm} drafts chains alone: set topk {self.topk} to 1"
        yield from self._errors_of_objective()
        if self.algorithm is Algorithm.NONE:
            yield from self._errors_of_none()
            return
        if self.table and self.table_path is not None:
            yield "table and table_path both give a table: remove one of them"
        elif self.table_path is None:
            if self.num_draft_tokens is not None:
                yield from _width_errors(self.topk, self.usual_steps, self.num_draft_tokens)
            error = launch_error(self.usual_steps, candidates(self.entries))
            yield from [] if error is None else [error]
            error = self.verify_tokens_error(self.table | self.tuned)
            yield from [] if error is None else [error]

    def _errors_of_objective(self) -> Iterator[str]:
        if self.objective is Objective.THROUGHPUT:
            if self.max_inter_token_ms is not None:
                yield (
                    f"objective throughput has no limit: remove max_inter_token_ms "
                    f"{self.max_inter_token_ms:g}, or set objective inter_token_latency"
                )
        elif self.max_inter_token_ms is None:
            yield "objective inter_token_latency has no limit: add max_inter_token_ms"
        if self.objective is not Objective.THROUGHPUT and self.policy is not Policy.GOODPUT:
            yield (
                f"policy {self.policy} does not know what steps cost: remove objective "
                f"{self.objective}, or choose policy goodput"
            )

    def _errors_of_none(self) -> Iterator[str]:
        unused = {
            "num_steps": bool(self.num_steps),
            "topk": self.topk != 1,
            "num_draft_tokens": self.num_draft_tokens is not None,
            "table": bool(self.table),
            "objective": self.objective is not Objective.THROUGHPUT,
            "tuned": bool(self.tuned),
            "table_path": self.table_path is not None,
        }
        for name, is_used in unused.items():
            if is_used:
                yield f"algorithm NONE does not draft: remove {name}, or choose an algorithm"


def _width_errors(topk: int, num_steps: int, num_draft_tokens: int) -> Iterator[str]:
    bound = max_tree_tokens(topk, num_steps)
    if (topk == 1 or num_steps == 0) and num_draft_tokens != num_steps + 1:
        yield (
            f"num_draft_tokens {num_draft_tokens} must be num_steps + 1 = {num_steps + 1} "
            f"with topk {topk}: remove it"
        )
    elif topk > 1 and num_steps > 0 and not 2 <= num_draft_tokens <= bound:
        yield (
            f"num_draft_tokens {num_draft_tokens} is outside 2..{bound}, "
            f"the bounds for topk {topk} and num_steps {num_steps}: correct or remove it"
        )
