"""Which forward passes are captured as CUDA graphs, and the budget for it."""

from typing import Annotated, Literal

from pydantic import Field

from specdecode_api.base import FileRecord


class GraphsBoot(FileRecord):
    """CUDA graphs of decode steps, or their stand-in without a GPU."""

    mode: Literal["auto", "off", "static", "cuda"] = Field(
        default="auto",
        description="cuda captures CUDA graphs, and the start fails where that fails; static pads "
        "and copies as graphs need it but captures nothing, to try out a plan; auto is cuda on a "
        "GPU, runs eagerly what cannot be captured, and is off on a CPU.",
    )
    batch_sizes: tuple[Annotated[int, Field(ge=1, le=4096)], ...] | None = Field(
        default=None,
        max_length=512,
        description="Batch sizes to capture, if the table can reach them; chosen by the engine if "
        "null, none if empty.",
    )
    max_bytes: int | None = Field(
        default=None,
        ge=0,
        description="Memory budget for CUDA graphs; what does not fit runs eagerly. If null, a "
        "tenth of the memory that is free after loading the weights.",
    )
    max_seconds: float = Field(
        default=120.0,
        ge=0,
        le=86_400,
        description="Time budget for capturing at start; the rest is captured while the engine is "
        "idle.",
    )
