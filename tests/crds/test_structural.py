"""Each row of the translation from pydantic's JSON schema to a structural one."""

from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, StringConstraints, create_model

from specdecode_api.structural import SchemaError, structural

Word = Annotated[str, StringConstraints(max_length=9)]


class Colour(StrEnum):
    """Docstring of the enum."""

    RED = "red"
    BLUE = "blue"


class Inner(BaseModel):
    """Docstring of the part."""

    number: Annotated[int, Field(ge=0, le=9)] = 3
    word: Word | None = None


def translated(annotation: Any, field: Any = ...) -> dict[str, Any]:
    """Translate a model of one field called `it`, and return what became of that field."""
    model = create_model("Outer", it=(annotation, field))
    properties: dict[str, dict[str, Any]] = structural(model.model_json_schema())["properties"]
    return properties["it"]


def test_parts_are_written_in_their_place():
    part = translated(Inner)
    assert part["type"] == "object"
    assert part["properties"]["number"]["default"] == 3
    assert part["description"] == "Docstring of the part."


def test_description_of_the_field_wins_over_that_of_its_type():
    assert translated(Inner, Field(description="Mine."))["description"] == "Mine."


def test_enum_is_written_in_its_place():
    assert translated(Colour)["enum"] == ["red", "blue"]


def test_none_means_absent():
    word = translated(Inner)["properties"]["word"]
    assert word == {"type": "string", "maxLength": 9}


def test_optional_part_has_no_default():
    assert "default" not in translated(Inner | None, None)
    assert "anyOf" not in translated(Inner | None, None)


def test_default_of_a_part_is_spelled_out_without_nulls():
    assert translated(Inner, Inner())["default"] == {"number": 3}


def test_exclusive_bound_is_a_flag():
    schema = translated(Annotated[float, Field(gt=0, lt=1)])
    assert (schema["minimum"], schema["exclusiveMinimum"]) == (0, True)
    assert (schema["maximum"], schema["exclusiveMaximum"]) == (1, True)
    assert schema["format"] == "double"


def test_single_literal_is_an_enum_of_one():
    assert translated(Literal["a"]) == {"type": "string", "enum": ["a"]}


def test_set_is_a_list_of_type_set():
    schema = translated(Annotated[set[Word], Field(max_length=3)])
    assert schema["x-kubernetes-list-type"] == "set"
    assert "uniqueItems" not in schema


def test_list_is_owned_as_a_whole_unless_declared_otherwise():
    assert (
        translated(Annotated[list[Word], Field(max_length=3)])["x-kubernetes-list-type"] == "atomic"
    )


def test_map_keeps_the_schema_of_its_values():
    schema = translated(Annotated[dict[str, Inner], Field(max_length=3)])
    assert schema["additionalProperties"]["properties"]["number"]["maximum"] == 9
    assert schema["maxProperties"] == 3


def test_number_or_text_is_int_or_string():
    schema = translated(int | Word)
    assert schema == {"maxLength": 9, "x-kubernetes-int-or-string": True}


@pytest.mark.parametrize(
    ("highest", "form"), [(2**31 - 1, "int32"), (2**31, "int64"), (None, "int64")]
)
def test_integer_has_the_format_that_holds_it(highest, form):
    assert translated(Annotated[int, Field(ge=0, le=highest)])["format"] == form


def test_closed_object_loses_what_the_server_forbids():
    class Closed(BaseModel, extra="forbid"):
        word: Word

    assert "additionalProperties" not in translated(Closed)


def test_titles_and_definitions_are_gone():
    class Outer(BaseModel):
        part: Inner

    schema = structural(Outer.model_json_schema())
    assert schema.keys() == {"properties", "required", "type"}
    assert "title" not in schema["properties"]["part"]


def test_field_called_title_stays():
    class Book(BaseModel):
        title: Word

    assert structural(Book.model_json_schema())["properties"]["title"]["type"] == "string"


class Endless(BaseModel):
    again: "Endless | None" = None


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (str, ".it: no maxLength"),
        (list[Word], ".it: no maxItems"),
        (Annotated[list[str], Field(max_length=2)], ".it.*: no maxLength"),
        (dict[str, Word], ".it: no maxProperties"),
        (dict[Word, Word], "propertyNames"),
        (
            dict[Annotated[str, StringConstraints(pattern="^a$")], Word],
            "patternProperties is not structural: check the keys with a rule",
        ),
        (tuple[Word, int], "prefixItems is not structural: use list"),
        (Word | Inner, "a choice of types is not structural"),
        (Any, "type None is not structural: give the value a type"),
        (dict[str, Any], "an object of any shape is not structural"),
        (Annotated[set[Literal["a"]] | None, Field(max_length=1)], None),
        (Endless, "Endless contains itself"),
        (Annotated[Inner | Endless, Field(discriminator=None)], "a choice of types"),
    ],
)
def test_what_cannot_be_expressed_is_refused_with_place_and_remedy(annotation, message):
    if message is None:
        translated(annotation)
        return
    with pytest.raises(SchemaError) as refusal:
        translated(annotation)
    assert message in str(refusal.value)
    assert str(refusal.value).startswith(".it")
