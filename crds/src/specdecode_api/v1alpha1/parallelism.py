"""Parallelism: among how many ranks an engine divides the target."""

from pydantic import Field

from specdecode_api.base import ResourceRecord
from specdecode_api.parallelism import MAX_PARTS, MAX_TENSOR
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
    pipeline: Int = Field(
        default=1,
        ge=1,
        le=MAX_PARTS,
        description="Pipeline stages of each engine, each of tensor ranks; runtime VLLM only.",
    )
    data: Int = Field(
        default=1,
        ge=1,
        le=MAX_PARTS,
        description="Copies of the model in each engine that share requests (data parallelism); "
        "runtime VLLM only.",
    )
    nodes: Int = Field(
        default=1,
        ge=1,
        le=MAX_PARTS,
        description="Nodes of each engine; 1, because an engine runs in one pod.",
    )
    expert: bool = Field(
        default=False,
        strict=True,
        description="Divide the experts of a mixture among all ranks; runtime VLLM only.",
    )

    @property
    def world_size(self) -> int:
        """Ranks of an engine, each on a GPU of its own."""
        return self.tensor * self.pipeline * self.data
