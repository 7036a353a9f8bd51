"""Which passes the engine captures once and replays, and what that may cost."""

from typing import Annotated, Literal

from pydantic import Field

from specdecode_api.document import FileRecord


class GraphsBoot(FileRecord):
    """Captured passes of decode rounds: CUDA graphs, or what stands for them without a GPU."""

    mode: Literal["auto", "off", "static", "cuda"] = Field(
        default="auto",
        description="cuda captures CUDA graphs; static pads and copies as graphs need it but "
        "captures nothing, to try a plan out; auto is cuda on a GPU and off on a CPU.",
    )
    batch_sizes: tuple[Annotated[int, Field(ge=1, le=4096)], ...] | None = Field(
        default=None,
        max_length=512,
        description="Batch sizes to capture, as far as the table reaches them; the engine's choice "
        "where null, none where empty.",
    )
    max_bytes: int | None = Field(
        default=None,
        ge=0,
        description="Memory that captured passes may take; what does not fit runs without. "
        "A tenth of what the weights leave where null.",
    )
    max_seconds: float = Field(
        default=120.0,
        ge=0,
        le=86_400,
        description="Time to capture at start; what is left is captured when it is first used.",
    )
