"""Tensor parallelism in the boot file: how many ranks compute one engine."""

from pydantic import Field

from specdecode_api.base import FileRecord
from specdecode_api.parallelism import MAX_TENSOR


class ParallelismBoot(FileRecord):
    """Among how many ranks the target is divided."""

    tensor: int = Field(
        default=1,
        ge=1,
        le=MAX_TENSOR,
        description="Ranks of the engine (tensor parallelism): processes of one machine, each with "
        "a share of the target's weights and KV cache on a GPU of its own. The draft is whole on "
        "every rank.",
    )
