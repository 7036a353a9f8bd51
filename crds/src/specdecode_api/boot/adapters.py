"""LoRA adapters in the boot file: which are loaded, under which names."""

from typing import Annotated

from pydantic import Field, StringConstraints

from specdecode_api.base import FileRecord
from specdecode_api.boot.speculation import CheckpointPath

MAX_ADAPTERS = 256
MAX_RANK = 512
AdapterName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$")]


class AdaptersBoot(FileRecord):
    """LoRA adapters of the target, which are loaded at the start; drafts run without them."""

    modules: Annotated[dict[AdapterName, CheckpointPath], Field(max_length=MAX_ADAPTERS)] = Field(
        default={},
        description="Folders of adapters as peft saves them, by the name that requests choose one "
        "by in model, alone or after the model's name and a colon; on a CPU alone.",
    )
    max_rank: int | None = Field(
        default=None,
        ge=1,
        le=MAX_RANK,
        description="Highest rank of an adapter, a higher one is refused at the start; "
        f"{MAX_RANK} if null.",
    )
