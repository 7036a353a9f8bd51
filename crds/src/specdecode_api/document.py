"""The two spellings of the contract's records: camelCase for resources, snake_case for files."""

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Change(StrEnum):
    """How a change of a field reaches running engines."""

    HOT = "hot"
    RESTART = "restart"


CHANGE_KEY = "x-specdecode-change"
"""Key under which a field's schema says its `Change`; it is stripped from the CRD."""

HOT: dict[str, Any] = {CHANGE_KEY: Change.HOT.value}
RESTART: dict[str, Any] = {CHANGE_KEY: Change.RESTART.value}


class ResourceRecord(BaseModel):
    """A part of a Kubernetes resource: camelCase in YAML, immutable, no unknown keys."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
    )


class FileRecord(BaseModel):
    """A part of a file of the engine: snake_case, immutable, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)
