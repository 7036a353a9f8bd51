"""Validation rules in two languages: CEL for the API server, a function for Python.

A message contains the rule and the remedy, and may end with values: `shows` is a field of type
string, `ends` any text whose length the API server can bound (`cel_text`). It treats what
`string()` returns as unbounded, and rejects a message with it for its cost.

A rule belongs to a record (`rules`) or, for a single value, to its type (`Checked`).
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

R = TypeVar("R")

RULE_ERROR: Final = "rule"
"""Type of the error that a broken rule raises in pydantic."""

VALIDATIONS_KEY: Final = "x-kubernetes-validations"

# FieldValueDuplicate is left out: the server returns no message with it.
Reason = Literal["FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired"]


@dataclass(frozen=True, slots=True)
class Ending(Generic[R]):
    """Values at the end of a message in both languages, with the words around them."""

    cel: str
    text: Callable[[R], str]


@dataclass(frozen=True, slots=True)
class Rule(Generic[R]):
    """A condition in both languages, and the message of its violation."""

    cel: str
    holds: Callable[[R], bool]
    message: str
    field: str = ""
    reason: Reason = "FieldValueInvalid"
    shows: str = ""  # a field of type string whose value ends the message
    absent: str = ""  # that value where the field is absent
    ends: Ending[R] | None = None

    def refusal(self, value: R) -> str | None:
        """Return the message if `value` violates the rule, else None."""
        if self.holds(value):
            return None
        if self.ends is not None:
            return f"{self.message}; {self.ends.text(value)}"
        shown = f"; {self.shows} is {getattr(value, self.shows)}" if self.shows else ""
        return f"{self.message}{shown}"

    def as_validation(self) -> dict[str, str]:
        validation = {"rule": self.cel, "message": self.message, "reason": self.reason}
        if self.field:
            validation["fieldPath"] = f".{self.field}"
        if self.shows:
            text = _quoted(f"{self.message}; {self.shows} is ")
            shown = or_default(self.shows, self.absent)
            validation["messageExpression"] = f"{text} + {shown}"
        if self.ends is not None:
            validation["messageExpression"] = f"{_quoted(f'{self.message}; ')} + {self.ends.cel}"
        return validation


def or_default(path: str, default: Any) -> str:
    """Return the CEL value at a path of `self`; `default` where it, or a part around it, is absent.

    The API server fills in no defaults, so that objects stay as users wrote them. Not by CEL's
    `orValue`, for whose result the API server knows no bound.
    """
    parts = path.split(".")
    places = [f"self.{'.'.join(parts[:count])}" for count in range(1, len(parts) + 1)]
    is_given = " && ".join(f"has({place})" for place in places)
    return f"({is_given} ? {places[-1]} : {json.dumps(default)})"


def unchangeable(field: str, why: str, *, is_optional: bool = False) -> Rule[Any]:
    """Have the API server refuse every change of a field, also from and to its absence.

    It always holds in Python, which knows no previous object.

    Args:
        is_optional: whether the field may be absent in what the API server stores.
    """
    is_same = f"self.{field} == oldSelf.{field}"
    if is_optional:
        both = f"has(self.{field}) == has(oldSelf.{field})"
        is_same = f"{both} && (!has(self.{field}) || {is_same})"
    return Rule(
        cel=is_same,
        holds=lambda _: True,
        message=f"{field} cannot be changed: {why}",
        field=field,
    )


def irreversible(field: str, cel: str, message: str) -> Rule[Any]:
    """Have the API server refuse a change back from a final value; see `unchangeable`."""
    return Rule(cel=cel, holds=lambda _: True, message=message, field=field)


def refuse(rules: Sequence[Rule[Any]], value: Any) -> None:
    """Raise an error with every violation, unless all `rules` hold for `value`.

    The context of the error contains the violations as `(field, message)`: see `validation_errors`.
    """
    refuse_with([(rule.field, text) for rule in rules if (text := rule.refusal(value)) is not None])


def refuse_with(refusals: Sequence[tuple[str, str]]) -> None:
    """Raise an error with each message at its field, unless there are none."""
    if refusals:
        text = "; ".join(f"{field}: {each}" if field else each for field, each in refusals)
        # The text goes in as a value: a template would read the braces in it.
        raise PydanticCustomError(RULE_ERROR, "{text}", {"text": text, "refusals": refusals})


def as_validations(rules: Sequence[Rule[Any]]) -> dict[str, Any]:
    """Write `rules` as the part of a schema that the API server reads."""
    return {VALIDATIONS_KEY: [rule.as_validation() for rule in rules]} if rules else {}


class Checked:
    """Annotate a type with rules on its value: `Annotated[str, Checked(RULE)]`."""

    def __init__(self, *rules: Rule[Any]) -> None:
        self._rules = rules

    def _check(self, value: Any) -> Any:
        refuse(self._rules, value)
        return value

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        json_schema = handler(schema)
        known = json_schema.get(VALIDATIONS_KEY, [])
        added = as_validations(self._rules).get(VALIDATIONS_KEY, [])
        return {**json_schema, VALIDATIONS_KEY: [*known, *added]}


def _quoted(text: str) -> str:
    # A JSON string is a CEL string.
    return json.dumps(text, ensure_ascii=False)
