"""The engine's part of the contract on speculation: tree shape, depth policy, table."""

from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from specdecode_api.document import FileRecord
from specdecode_api.speculation import (
    MAX_STEPS,
    MAX_TABLE_ENTRIES,
    MAX_TOPK,
    NEEDS_DRAFT,
    Algorithm,
    Policy,
    max_tree_tokens,
)
from specdecode_api.table import (
    BatchSizeKey,
    TableEntry,
    candidates,
    default_table,
    launch_fault,
)

CheckpointPath = Annotated[str, StringConstraints(min_length=1, max_length=1024)]


class SpeculationBoot(FileRecord):
    """How to draft: algorithm, draft checkpoint, tree shape and depth policy."""

    algorithm: Algorithm = Field(
        default=Algorithm.NONE, description="Where draft tokens come from; NONE decodes plainly."
    )
    draft_path: CheckpointPath | None = Field(
        default=None, description="Folder of the draft's checkpoint; NONE and NGRAM take none."
    )
    topk: int = Field(
        default=1,
        ge=1,
        le=MAX_TOPK,
        description="Children of a node of the draft tree; 1 drafts a chain.",
    )
    num_steps: int = Field(default=0, ge=0, le=MAX_STEPS, description="Depth at start.")
    num_draft_tokens: int | None = Field(
        default=None,
        description="Nodes verified in a round at num_steps, root included; worked out where null.",
    )
    policy: Policy = Field(default=Policy.STATIC, description="Who decides on the depth.")
    table: dict[BatchSizeKey, TableEntry] = Field(
        default={},
        max_length=MAX_TABLE_ENTRIES,
        description="Lower bound of a range of batch sizes to the depths it may use; where empty, "
        "policies ema and goodput have a default table.",
    )
    table_path: CheckpointPath | None = Field(
        default=None,
        description="JSON file to read the table from, in place of table: this form, the "
        "resource's, or SGLang's --speculative-adaptive-config.",
    )
    tuned: dict[BatchSizeKey, TableEntry] = Field(
        default={},
        max_length=MAX_TABLE_ENTRIES,
        description="Table that was learned while serving and is used in place of the other one, "
        "as long as that one has all of its depths: what is prepared at start follows the other.",
    )
    profile_seconds: float = Field(
        default=5.0,
        ge=0,
        le=600,
        description="Longest time spent at start measuring what rounds cost (policy goodput); "
        "0 measures nothing.",
    )

    @property
    def entries(self) -> Mapping[str, TableEntry]:
        """The table that is used: the given one, else the policy's default; empty without one."""
        assert self.table_path is None, "the file is read first, see `with_table`"
        if self.algorithm is Algorithm.NONE:
            return {}
        return self.table or default_table(self.policy)

    @property
    def tuned_fault(self) -> str | None:
        """Why the tuned table is not used, or None where it is used or absent."""
        known = {self.num_steps, *candidates(self.entries)}
        unknown = sorted(set(candidates(self.tuned)) - known)
        if not unknown:
            return None
        return (
            f"tuned: candidate_steps {unknown} are not among the depths {sorted(known)} that are "
            "prepared at start: keep to those, or remove tuned"
        )

    def with_table(self, entries: Mapping[str, TableEntry]) -> "SpeculationBoot":
        """Put a table that was read in the place of the file that it was read from."""
        return self.model_copy(update={"table": dict(entries), "table_path": None})

    @model_validator(mode="after")
    def _check(self) -> "SpeculationBoot":
        faults = tuple(self._faults())
        if faults:
            raise ValueError("; ".join(faults))
        return self

    def _faults(self) -> Iterator[str]:
        if self.algorithm in NEEDS_DRAFT and self.draft_path is None:
            yield f"algorithm {self.algorithm} needs draft_path: add it"
        if self.algorithm not in NEEDS_DRAFT and self.draft_path is not None:
            yield f"algorithm {self.algorithm} takes no draft_path: remove it"
        if self.algorithm is Algorithm.NONE:
            yield from self._faults_of_none()
            return
        if self.num_draft_tokens is not None:
            yield from _width_faults(self.topk, self.num_steps, self.num_draft_tokens)
        if self.table and self.table_path is not None:
            yield "table and table_path both give a table: remove one of them"
        elif self.table_path is None:
            fault = launch_fault(self.num_steps, candidates(self.entries))
            yield from [] if fault is None else [fault]

    def _faults_of_none(self) -> Iterator[str]:
        unused = {
            "num_steps": self.num_steps != 0,
            "topk": self.topk != 1,
            "num_draft_tokens": self.num_draft_tokens is not None,
            "table": bool(self.table),
            "tuned": bool(self.tuned),
            "table_path": self.table_path is not None,
        }
        for name, is_used in unused.items():
            if is_used:
                yield f"algorithm NONE decodes plainly: remove {name}, or choose an algorithm"


def _width_faults(topk: int, num_steps: int, num_draft_tokens: int) -> Iterator[str]:
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
