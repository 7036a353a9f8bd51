"""Tensor parallelism: among how many ranks an engine divides the target."""

from pydantic import Field

from specdecode_api.base import ResourceRecord
from specdecode_api.parallelism import MAX_TENSOR
from specdecode_api.v1alpha1.scalars import Int


class ParallelismSpec(ResourceRecord):
    """How the target is divided among the ranks of an engine."""

    tensor: Int = Field(
        default=1,
        ge=1,
        le=MAX_TENSOR,
        description="Ranks of each engine (tensor parallelism): each computes a share of the "
        "target on a GPU of its own. All of them run in one pod, which requests as many GPUs. "
        "Texts may differ from those of another number, because sums are rounded differently.",
    )
