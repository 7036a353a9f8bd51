"""LoRA adapters in the boot file: which are loaded, under which names."""

import re
from typing import Annotated

from pydantic import Field, StringConstraints, field_validator

from specdecode_api.base import FileRecord
from specdecode_api.boot.speculation import CheckpointPath

MAX_ADAPTERS = 256
MAX_RANK = 512
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$"
AdapterName = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
SHOWN_NAME_CHARS = 200
DEFAULT_RANK = 16
"""Of adapters that are loaded later, as in vLLM."""


class AdaptersBoot(FileRecord):
    """LoRA adapters of the target; drafts run without them."""

    modules: Annotated[dict[AdapterName, CheckpointPath], Field(max_length=MAX_ADAPTERS)] = Field(
        default={},
        description="Folders of adapters as peft saves them, by the name that requests choose one "
        "by in model, alone or after the model's name and a colon; on a CPU alone.",
    )
    max_rank: int | None = Field(
        default=None,
        ge=1,
        le=MAX_RANK,
        description="Highest rank of an adapter, a higher one is refused. If null, "
        f"{MAX_RANK}; with root {DEFAULT_RANK}, or the highest of modules.",
    )
    root: CheckpointPath | None = Field(
        default=None,
        description="Folder below which adapters may be loaded while the engine serves, by "
        "POST /v1/load_lora_adapter on the management port; none if null.",
    )
    max_loaded: int | None = Field(
        default=None,
        ge=1,
        le=MAX_ADAPTERS,
        description="Most adapters that are loaded at a time, those of modules included; with root "
        "the start keeps memory for as many of the highest rank. If null, or fewer than modules, "
        "as many as modules, with root at least 1.",
    )

    @property
    def num_slots(self) -> int:
        """The most adapters that are loaded at a time."""
        least = 0 if self.root is None else 1
        return max(len(self.modules), self.max_loaded or least)

    @field_validator("modules", mode="before")
    @classmethod
    def _has_names(cls, modules: object) -> object:
        names = modules if isinstance(modules, dict) else ()
        for name in filter(lambda name: isinstance(name, str), names):
            check_adapter_name(name)
        return modules


def check_adapter_name(name: str) -> str:
    """Return the name of an adapter.

    Raises:
        ValueError: it is none, with the remedy.
    """
    if re.fullmatch(NAME_PATTERN, name) is None or name.endswith("\n"):
        raise ValueError(
            f"{name[:SHOWN_NAME_CHARS]!r} is not a name for an adapter: use at most 128 "
            "letters, digits and . _ / -; begin with a letter or a digit"
        )
    return name
