"""Types of pydantic, and values of each: at least one is valid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar
from uuid import UUID

from annotated_types import Ge, Gt, Le, Len, Lt, MultipleOf
from pydantic import (
    AnyHttpUrl,
    AnyUrl,
    Base64Str,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Json,
    NonNegativeInt,
    PositiveFloat,
    RootModel,
    SecretStr,
    StringConstraints,
    Tag,
    TypeAdapter,
)
from typing_extensions import TypedDict

Item = TypeVar("Item")


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Point(NamedTuple):
    x: float
    y: float


class Movie(TypedDict):
    name: str
    year: int


class PartialMovie(TypedDict, total=False):
    name: str


@dataclass
class Size:
    width: int
    height: int = 1


class User(BaseModel):
    name: str
    age: int = Field(ge=0)
    tags: list[str] = []


class ClosedUser(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    nickname: str | None = None


class OpenUser(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str


class Aliased(BaseModel):
    first_name: str = Field(alias="firstName")


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    barks: bool


class Owner(BaseModel):
    pet: Cat | Dog = Field(discriminator="kind")


class Tree(BaseModel):
    value: int
    children: list[Tree] = []


class Linked(BaseModel):
    value: int
    next: Linked | None = None


class Box(BaseModel, Generic[Item]):
    content: Item


class Names(RootModel[list[str]]):
    pass


class Order(BaseModel):
    user: User
    status: Colour
    items: list[Movie]


def _kind(value: Any) -> str:
    return "text" if isinstance(value, str) else "number"


Tagged = Annotated[
    Annotated[str, Tag("text")] | Annotated[int, Tag("number")], Discriminator(_kind)
]
_ADA: Mapping[str, object] = {"name": "Ada", "age": 36}
TYPES: Sequence[tuple[str, Any, Sequence[object]]] = (
    ("str", str, ["", "a"]),
    ("str with limits", Annotated[str, StringConstraints(min_length=2, max_length=3)], ["ab"]),
    ("str with a pattern", Annotated[str, StringConstraints(pattern="^[a-z]+$")], ["ab", "A"]),
    ("int", int, [7]),
    ("int with bounds", Annotated[int, Ge(3), Lt(12)], [3, 12]),
    ("int with a multiple", Annotated[int, MultipleOf(5)], [10, 11]),
    ("NonNegativeInt", NonNegativeInt, [0, -1]),
    ("float", float, [1.5]),
    ("float with bounds", Annotated[float, Gt(0), Le(1)], [0.5, 1.5]),
    ("PositiveFloat", PositiveFloat, [0.5, 0]),
    ("bool", bool, [True]),
    ("None", None, [None]),
    ("Any", Any, [{"a": 1}]),
    ("Decimal", Decimal, ["1.5", 2]),
    ("date", date, ["2026-11-29"]),
    ("time", time, ["12:30:00Z"]),
    ("datetime", datetime, ["2026-11-29T12:30:00Z"]),
    ("timedelta", timedelta, ["P1DT2H"]),
    ("UUID", UUID, ["123e4567-e89b-42d3-a456-426614174000"]),
    ("AnyUrl", AnyUrl, ["https://a.example/b"]),
    ("AnyHttpUrl", AnyHttpUrl, ["https://a.example/b"]),
    ("IPv4Address", IPv4Address, ["10.0.0.1"]),
    ("IPv6Address", IPv6Address, ["2001:db8::1"]),
    ("IPv4Network", IPv4Network, ["10.0.0.0/8"]),
    ("Path", Path, ["/a/b"]),
    ("bytes", bytes, ["abc"]),
    ("Base64Str", Base64Str, ["YWJj"]),
    ("SecretStr", SecretStr, ["abc"]),
    ("Json", Json[list[int]], ["[1]"]),
    ("Literal", Literal["on", "off"], ["on", "up"]),
    ("Literal of kinds", Literal["a", 1, True], ["a", 1]),
    ("Enum", Colour, ["red", "blue"]),
    ("IntEnum", Level, [1, 3]),
    ("optional", str | None, [None, "a"]),
    ("union", int | str, [1, "a"]),
    ("tagged union", Tagged, [1, "a"]),
    ("list", list[int], [[1, 2], ["a"]]),
    ("list with limits", Annotated[list[int], Len(1, 2)], [[1], [1, 2, 3]]),
    ("set", set[int], [[1, 2]]),
    ("set of an enum", set[Colour], [["red", "green"]]),
    ("set of a literal", Annotated[set[Literal["a", "b"]], Len(1)], [["a"]]),
    ("frozenset", frozenset[str], [["a"]]),
    ("tuple", tuple[int, str], [[1, "a"], [1]]),
    ("tuple of any length", tuple[int, ...], [[1, 2, 3]]),
    ("NamedTuple", Point, [[1, 2], [1]]),
    ("dict", dict[str, int], [{"a": 1}]),
    ("dict by integers", dict[int, str], [{"1": "a"}]),
    ("dict by an enum", dict[Colour, int], [{"red": 1}]),
    ("TypedDict", Movie, [{"name": "a", "year": 1}]),
    ("TypedDict, partial", PartialMovie, [{}]),
    ("dataclass", Size, [{"width": 1}]),
    ("model", User, [_ADA, {"name": "a", "age": -1}]),
    ("closed model", ClosedUser, [{"name": "a"}, {"name": "a", "b": 1}]),
    ("open model", OpenUser, [{"name": "a", "b": 1}]),
    ("model with an alias", Aliased, [{"firstName": "a"}]),
    ("discriminated union", Owner, [{"pet": {"kind": "cat", "lives": 9}}]),
    ("recursive model", Tree, [{"value": 1, "children": [{"value": 2}]}]),
    ("linked models", Linked, [{"value": 1, "next": {"value": 2}}]),
    ("generic model", Box[int], [{"content": 1}]),
    ("RootModel", Names, [["a"]]),
    (
        "nested models",
        Order,
        [{"user": _ADA, "status": "red", "items": [{"name": "a", "year": 1}]}],
    ),
)
ADAPTERS = {name: TypeAdapter(kind) for name, kind, _ in TYPES}
