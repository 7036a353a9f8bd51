"""A check said twice: to the API server in CEL, and to Python as a function, side by side.

A refusal says the rule and the remedy. It can show a string it saw, but no number and no list:
the API server takes the size of their text for unbounded, and refuses such a message for its cost.

Rules hang on a record's `rules` or, for a single value, on its type through `Checked`.
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

# FieldValueDuplicate is left out: the server then says no message.
Reason = Literal["FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired"]


@dataclass(frozen=True, slots=True)
class Rule(Generic[R]):
    """What must hold, in both languages, and what to tell the one who broke it."""

    cel: str
    holds: Callable[[R], bool]
    message: str
    field: str = ""
    reason: Reason = "FieldValueInvalid"
    shows: str = ""  # a field of type string whose value ends the message

    def refusal(self, value: R) -> str | None:
        """Return what is wrong with `value`, or None."""
        if self.holds(value):
            return None
        shown = f"; {self.shows} is {getattr(value, self.shows)}" if self.shows else ""
        return f"{self.message}{shown}"

    def as_validation(self) -> dict[str, str]:
        """Write the rule as an item of `x-kubernetes-validations`."""
        validation = {"rule": self.cel, "message": self.message, "reason": self.reason}
        if self.field:
            validation["fieldPath"] = f".{self.field}"
        if self.shows:
            said = _quoted(f"{self.message}; {self.shows} is ")
            validation["messageExpression"] = f"{said} + self.{self.shows}"
        return validation


def refuse(rules: Sequence[Rule[Any]], value: Any) -> None:
    """Raise, with every refusal, unless all `rules` hold for `value`.

    The error's context has the refusals one by one as `(field, message)`: see `problems`.
    """
    refusals = [(rule.field, said) for rule in rules if (said := rule.refusal(value)) is not None]
    if refusals:
        text = "; ".join(f"{field}: {said}" if field else said for field, said in refusals)
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
