"""The engine's part of the contract on speculation: tree shape, depth policy, table."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from specdecode_api.document import FileRecord
from specdecode_api.speculation import (
    BATCH_SIZE_PATTERN,
    MAX_CANDIDATES,
    MAX_STEPS,
    MAX_TABLE_ENTRIES,
    MAX_TOPK,
    NEEDS_DRAFT,
    Algorithm,
    Policy,
    max_tree_tokens,
)

CheckpointPath = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
BatchSizeKey = Annotated[str, StringConstraints(pattern=f"^{BATCH_SIZE_PATTERN}$")]


class TableEntry(FileRecord):
    """The depths that a range of batch sizes may use, and how its slot adapts."""

    candidate_steps: tuple[Annotated[int, Field(ge=0, le=MAX_STEPS)], ...] = Field(
        min_length=1,
        max_length=MAX_CANDIDATES,
        description="Depths to choose from; 0 is plain decoding.",
    )
    up_hysteresis: float = Field(
        default=0.0,
        ge=-16,
        le=16,
        description="Added to the accept length above which the depth rises (policy ema).",
    )
    down_hysteresis: float = Field(
        default=-0.25,
        ge=-16,
        le=16,
        description="Added to the accept length below which the depth falls (policy ema).",
    )
    ceiling_coeff: float = Field(
        default=0.0,
        ge=0,
        le=16,
        description="Caps the depth at this multiple of the accept length (policy ema); "
        "0 is no cap.",
    )
    ema_alpha: float = Field(
        default=0.2,
        gt=0,
        le=1,
        description="Weight of the newest round in the moving average (policy ema).",
    )
    update_interval: int = Field(
        default=5, ge=1, le=100_000, description="Rounds between two decisions (policy ema)."
    )
    warmup_batches: int = Field(
        default=10, ge=0, le=100_000, description="Rounds before the first decision (policy ema)."
    )


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
        description="Lower bound of a range of batch sizes to the depths it may use.",
    )

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
        candidates = {steps for entry in self.table.values() for steps in entry.candidate_steps}
        if candidates and self.num_steps not in candidates:
            yield (
                f"num_steps {self.num_steps} is in no entry of the table: "
                f"use one of {sorted(candidates)}"
            )

    def _faults_of_none(self) -> Iterator[str]:
        unused = {
            "num_steps": self.num_steps != 0,
            "topk": self.topk != 1,
            "num_draft_tokens": self.num_draft_tokens is not None,
            "table": bool(self.table),
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
