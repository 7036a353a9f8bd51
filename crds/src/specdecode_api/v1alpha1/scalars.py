"""Single values of the resource: numbers, references and quantities, each with its bounds."""

import re
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, StringConstraints, WithJsonSchema

from specdecode_api.location import URI_RULES
from specdecode_api.quantity import MAX_QUANTITY_LENGTH, QUANTITY_PATTERN
from specdecode_api.rules import Checked, Rule

# Strict: the API server takes neither "3" nor true for a number.
Int = Annotated[int, Field(strict=True)]
Float = Annotated[float, Field(strict=True)]

Uri = Annotated[str, StringConstraints(min_length=8, max_length=1024), Checked(*URI_RULES)]


def _text(pattern: str, message: str) -> Checked:
    rule: Rule[str] = Rule(
        cel=f"self.matches('^{pattern}$')",
        # fullmatch: `$` would let a newline at the end pass, in CEL it does not.
        holds=lambda text: re.fullmatch(pattern, text) is not None,
        message=message,
    )
    return Checked(rule)


Image = Annotated[
    str,
    StringConstraints(min_length=1, max_length=512),
    _text(
        "[A-Za-z0-9][A-Za-z0-9._:/@-]*[A-Za-z0-9]",
        "write an image reference such as registry/name:tag or registry/name@sha256:DIGEST",
    ),
]

ServedName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=253),
    _text(
        "[A-Za-z0-9]([A-Za-z0-9._:/+-]*[A-Za-z0-9])?",
        "a served name has letters, digits and ._:/+- and begins and ends with a letter or digit",
    ),
]


def _digits(value: Any) -> Any:
    """Write a whole number as text: users say `nvidia.com/gpu: 1`."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


QUANTITY_SCHEMA: Final = {
    "x-kubernetes-int-or-string": True,
    "maxLength": MAX_QUANTITY_LENGTH,
    "minimum": 0,
    "pattern": QUANTITY_PATTERN,
}

Quantity = Annotated[
    str,
    StringConstraints(max_length=MAX_QUANTITY_LENGTH, pattern=QUANTITY_PATTERN),
    BeforeValidator(_digits),
    WithJsonSchema(QUANTITY_SCHEMA),
]
