"""The boot file: everything an engine needs to start, with or without Kubernetes."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from specdecode_api import names
from specdecode_api.document import FileRecord
from specdecode_api.speculation import (
    MAX_CANDIDATES,
    MAX_PAGE_SIZE,
    MAX_STEPS,
    MAX_TABLE_ENTRIES,
    MAX_TOPK,
    NEEDS_DRAFT,
    Algorithm,
    Policy,
    max_tree_tokens,
)

BOOT_VERSION: Literal[1] = 1

Dtype = Literal["auto", "bfloat16", "float16", "float32", "float64"]
Path = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
BatchSizeKey = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,5}$")]


class TableEntry(FileRecord):
    """The depths that a range of batch sizes may use, and how its slot adapts."""

    candidate_steps: tuple[Annotated[int, Field(ge=0, le=MAX_STEPS)], ...] = Field(
        min_length=1, max_length=MAX_CANDIDATES
    )
    up_hysteresis: float = Field(default=0.0, ge=-16, le=16)
    down_hysteresis: float = Field(default=-0.25, ge=-16, le=16)
    ceiling_coeff: float = Field(default=0.0, ge=0, le=16)
    ema_alpha: float = Field(default=0.2, gt=0, le=1)
    update_interval: int = Field(default=5, ge=1, le=100_000)
    warmup_batches: int = Field(default=10, ge=0, le=100_000)


class SpeculationBoot(FileRecord):
    """How to draft: algorithm, draft checkpoint, tree shape and depth policy."""

    algorithm: Algorithm = Algorithm.NONE
    draft_path: Path | None = None
    topk: int = Field(default=1, ge=1, le=MAX_TOPK)
    num_steps: int = Field(default=0, ge=0, le=MAX_STEPS)
    num_draft_tokens: int | None = None
    policy: Policy = Policy.STATIC
    table: dict[BatchSizeKey, TableEntry] = Field(default={}, max_length=MAX_TABLE_ENTRIES)

    @model_validator(mode="after")
    def _check(self) -> "SpeculationBoot":
        if (self.algorithm in NEEDS_DRAFT) != (self.draft_path is not None):
            verb = "needs" if self.algorithm in NEEDS_DRAFT else "takes no"
            raise ValueError(f"algorithm {self.algorithm} {verb} draft_path")
        if self.algorithm is Algorithm.NONE:
            if self.num_steps or self.table:
                raise ValueError("algorithm NONE takes neither num_steps nor table")
            return self
        if self.num_draft_tokens is not None:
            _check_width(self.topk, self.num_steps, self.num_draft_tokens)
        candidates = {steps for entry in self.table.values() for steps in entry.candidate_steps}
        if candidates and self.num_steps not in candidates:
            raise ValueError(
                f"num_steps {self.num_steps} is in no entry of the table; "
                f"use one of {sorted(candidates)}"
            )
        return self


def _check_width(topk: int, num_steps: int, num_draft_tokens: int) -> None:
    if topk == 1 and num_draft_tokens != num_steps + 1:
        raise ValueError(
            f"with topk 1, num_draft_tokens must be num_steps + 1 = {num_steps + 1}, "
            f"not {num_draft_tokens}; leave it out"
        )
    bound = max_tree_tokens(topk, num_steps)
    if topk > 1 and not 2 <= num_draft_tokens <= bound:
        raise ValueError(
            f"num_draft_tokens {num_draft_tokens} is outside 2..{bound}, "
            f"the bounds for topk {topk} and num_steps {num_steps}"
        )


class ModelBoot(FileRecord):
    """The target: where its checkpoint lies and under which name it is served."""

    path: Path
    served_name: Annotated[str, StringConstraints(min_length=1, max_length=253)] | None = None
    dtype: Dtype = "auto"
    context_length: int | None = Field(default=None, ge=16, le=10_000_000)


class MemoryBoot(FileRecord):
    """How the key-value cache is cut and how large it may grow."""

    page_size: int = Field(default=16, ge=1, le=MAX_PAGE_SIZE)
    kv_cache_bytes: int | None = Field(default=None, ge=1)
    kv_cache_fraction: float = Field(default=0.85, gt=0, le=1)

    @field_validator("page_size")
    @classmethod
    def _is_power_of_two(cls, page_size: int) -> int:
        if page_size & (page_size - 1):
            raise ValueError(f"page_size {page_size} is not a power of two; use 1, 2, 4, … 256")
        return page_size


class SchedulingBoot(FileRecord):
    """How many requests run and wait, and how prompts are cut into chunks."""

    max_running_requests: int = Field(default=64, ge=1, le=4096)
    max_queued_requests: int = Field(default=512, ge=0, le=1_000_000)
    chunked_prefill_tokens: int = Field(default=512, ge=1, le=1_000_000)


class ServerBoot(FileRecord):
    """Where the engine listens and how long it drains."""

    host: str = "0.0.0.0"
    port: int = Field(default=names.ENGINE_PORT, ge=0, le=65535)
    drain_seconds: float = Field(default=30.0, ge=0, le=86_400)


class EngineBoot(FileRecord):
    """The whole boot file, version 1."""

    version: Literal[1] = BOOT_VERSION
    model: ModelBoot
    speculation: SpeculationBoot = SpeculationBoot()
    memory: MemoryBoot = MemoryBoot()
    scheduling: SchedulingBoot = SchedulingBoot()
    server: ServerBoot = ServerBoot()
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int | None = Field(default=None, ge=1, le=1024)
