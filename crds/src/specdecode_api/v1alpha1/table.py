"""The speculation table: which depths a range of batch sizes may use, and who chooses."""

import re
from typing import Annotated

from pydantic import BeforeValidator, Field

from specdecode_api.base import RESTART, HotRecord, ResourceRecord, without_nulls
from specdecode_api.rules import Checked, Rule
from specdecode_api.speculation import (
    BATCH_SIZE_PATTERN,
    MAX_CANDIDATES,
    MAX_STEPS,
    MAX_TABLE_ENTRIES,
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
            message="every depth may stand in candidateSteps once: remove the repeated one",
        )
    ),
]


class BatchSizeEntry(HotRecord):
    """Depths that a range of batch sizes may use."""

    candidate_steps: CandidateSteps = Field(
        min_length=1,
        max_length=MAX_CANDIDATES,
        json_schema_extra=RESTART,
        description="Depths to choose from; 0 is plain decoding.",
    )
    up_hysteresis: Float = Field(
        default=0.0,
        ge=-16,
        le=16,
        description="Added to the accept length above which the depth rises (policy ema).",
    )
    down_hysteresis: Float = Field(
        default=-0.25,
        ge=-16,
        le=16,
        description="Added to the accept length below which the depth falls (policy ema).",
    )
    ceiling_coeff: Float = Field(
        default=0.0,
        ge=0,
        le=16,
        description="Caps the depth at this multiple of the accept length (policy ema); "
        "0 is no cap.",
    )
    ema_alpha: Float = Field(
        default=0.2,
        gt=0,
        le=1,
        description="Weight of the newest round in the moving average (policy ema).",
    )
    update_interval: Int = Field(
        default=5, ge=1, le=100_000, description="Rounds between two decisions (policy ema)."
    )
    warmup_batches: Int = Field(
        default=10, ge=0, le=100_000, description="Rounds before the first decision (policy ema)."
    )


Table = Annotated[
    dict[str, BatchSizeEntry],
    Checked(
        Rule(
            cel=f"self.all(k, k.matches('^{BATCH_SIZE_PATTERN}$'))",
            holds=lambda table: all(re.fullmatch(BATCH_SIZE_PATTERN, key) for key in table),
            message="a batch size is a positive whole number in digits, without leading zeros, "
            "at most 999999: rename the key",
        )
    ),
    BeforeValidator(without_nulls),
]


class Adaptive(ResourceRecord):
    """What chooses the depth of a round."""

    policy: Policy = Field(
        default=Policy.GOODPUT,
        description="Who decides on the depth: goodput maximises tokens per second; ema follows "
        "accept lengths; static keeps numSteps, within what batchSizes allows. A spec without "
        "adaptive is static.",
    )
    batch_sizes: Table = Field(
        default={},
        max_length=MAX_TABLE_ENTRIES,
        description="Lower bound of a range of batch sizes, in digits, to the depths it may use; "
        "smaller batches use the first entry. Policies ema and goodput have a default table.",
        json_schema_extra=RESTART,
    )

    def candidates(self) -> tuple[int, ...]:
        """List every depth once, ascending: of the table, else of the policy's default one."""
        return candidates(self.batch_sizes or default_table(self.policy))
