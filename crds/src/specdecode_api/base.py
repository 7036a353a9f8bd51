"""Base classes of the contract's records: camelCase in resources, snake_case in files."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema

from specdecode_api.rules import Rule, as_validations, refuse


class Change(StrEnum):
    """How a change of a field reaches running engines: by a restart, unless it is marked `HOT`."""

    HOT = "hot"
    RESTART = "restart"


CHANGE_KEY = "x-specdecode-change"
"""Key of a field's `Change` in its schema; it is stripped from the CRD."""

HOT: dict[str, Any] = {CHANGE_KEY: Change.HOT.value}
RESTART: dict[str, Any] = {CHANGE_KEY: Change.RESTART.value}
"""For a field with parts that restarts as a whole too, or in a `HotRecord`; else the default."""


def map_by(key: str) -> dict[str, Any]:
    """Have the API server merge a list by the value of one field of its items."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


def without_nulls(fields: Any) -> Any:
    """Treat null as absent in an object or a map, as the API server does."""
    if not isinstance(fields, Mapping):
        return fields
    return {name: value for name, value in fields.items() if value is not None}


class ResourceRecord(BaseModel):
    """A part of a Kubernetes resource: camelCase in YAML, immutable, no unknown keys.

    It rejects what the API server rejects, and treats null as absent, as the API server does.
    """

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True
    )

    rules: ClassVar[tuple[Rule[Any], ...]] = ()

    @classmethod
    def from_resource(cls, fields: Mapping[str, Any]) -> Self:
        """Read an object as the API server stores it; only camelCase names are accepted."""
        return cls.model_validate(fields, by_alias=True, by_name=False)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, fields: Any) -> Any:
        return without_nulls(fields)

    @model_validator(mode="after")
    def _keep_rules(self) -> Self:
        refuse(self.rules, self)
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        json_schema = handler(schema)
        handler.resolve_ref_schema(json_schema).update(as_validations(cls.rules))
        return json_schema


def _mark_values_hot(schema: dict[str, Any]) -> None:
    for field in schema["properties"].values():
        if "$ref" not in field:
            field.setdefault(CHANGE_KEY, Change.HOT.value)


class HotRecord(ResourceRecord):
    """A part of a resource whose values reach running engines without a restart, by default."""

    model_config = ConfigDict(json_schema_extra=_mark_values_hot)


class FileRecord(BaseModel):
    """A part of a file of the engine: snake_case, immutable, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)
