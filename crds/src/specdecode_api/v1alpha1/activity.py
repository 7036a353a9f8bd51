"""What the engines of a resource did in the last day, by half hours."""

from typing import Annotated, Final

from pydantic import Field

from specdecode_api.base import ResourceRecord
from specdecode_api.v1alpha1.rollout_status import Time
from specdecode_api.v1alpha1.scalars import Int

MAX_PERIODS: Final = 48
"""Half hours that are kept: a day."""
MAX_BUCKETS: Final = 9

Rate = Annotated[Int, Field(ge=0, le=2**31 - 1)]
Hundredths = Annotated[Int, Field(ge=0, le=100_000)]
Tenths = Annotated[Int, Field(ge=-1, le=10_000)]


class DraftStepsActivity(ResourceRecord):
    """Mean draft steps in one batch bucket."""

    from_: Annotated[Int, Field(ge=1, le=2**31 - 1)] = Field(
        alias="from", description="Smallest batch of the bucket."
    )
    tenths: list[Tenths] = Field(
        max_length=MAX_PERIODS,
        description="Tenths of draft steps, per half hour; -1 without a decode step.",
    )


class Activity(ResourceRecord):
    """Half hours of work, the oldest first; all lists have the same length.

    Numbers are integers, because Kubernetes stores no floats, and in columns, because a ring of
    rows would exceed 4 KiB.
    """

    until: Time = Field(description="End of the newest half hour.")
    tokens_per_second: list[Rate] = Field(
        max_length=MAX_PERIODS,
        description="Output tokens of decode steps per second, of the engines that were read.",
    )
    accept_length_hundredths: list[Hundredths] = Field(
        max_length=MAX_PERIODS,
        description="Hundredths of output tokens per request and decode step; 0 without any.",
    )
    draft_steps: list[DraftStepsActivity] = Field(
        default=[],
        max_length=MAX_BUCKETS,
        description="Mean draft steps by batch bucket.",
    )
