"""Single values of the resource: numbers, references and quantities, each with its bounds."""

import re
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, StringConstraints, WithJsonSchema

from specdecode_api.duration import DURATION_PATTERN, PERCENT_PATTERN, duration_s
from specdecode_api.model_uri import PVC_PATTERN, URI_RULES
from specdecode_api.names import CORS_ORIGIN_PATTERN, HTTP_URL_PATTERN, REQUEST_LABEL_PATTERN
from specdecode_api.quantity import MAX_QUANTITY_LENGTH, QUANTITY_PATTERN, amount, is_quantity
from specdecode_api.rules import Checked, Rule, as_validations

# Strict: the API server takes neither "3" nor true for a number.
Int = Annotated[int, Field(strict=True)]
Float = Annotated[float, Field(strict=True)]

Uri = Annotated[str, StringConstraints(min_length=8, max_length=1024), Checked(*URI_RULES)]


def matches(pattern: str, message: str) -> Checked:
    """Require the whole text to match a pattern."""
    return Checked(
        Rule(
            cel=f"self.matches('^{pattern}$')",
            # fullmatch: `$` would let a newline at the end pass, in CEL it does not.
            holds=lambda text: re.fullmatch(pattern, text) is not None,
            message=message,
        )
    )


Image = Annotated[
    str,
    StringConstraints(min_length=1, max_length=512),
    matches(
        "[A-Za-z0-9][A-Za-z0-9._:/@-]*[A-Za-z0-9]",
        "write an image reference such as registry/name:tag or registry/name@sha256:DIGEST",
    ),
]

ServedName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=253),
    matches(
        "[A-Za-z0-9]([A-Za-z0-9._:/+-]*[A-Za-z0-9])?",
        "a served name has letters, digits and ._:/+- and begins and ends with a letter or digit",
    ),
]

ObjectName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=253),
    matches(
        PVC_PATTERN,
        "write the name of an object of this namespace: lower case letters, digits, '-' and '.'",
    ),
]

SecretKey = Annotated[
    str,
    StringConstraints(min_length=1, max_length=253),
    matches("[-._a-zA-Z0-9]+", "a key of a Secret has letters, digits and ._-"),
]

MAX_FREE_FIELDS: Final = 64

FreeObject = Annotated[
    dict[str, Any],
    Field(max_length=MAX_FREE_FIELDS),
    WithJsonSchema(
        {
            "type": "object",
            "maxProperties": MAX_FREE_FIELDS,
            "x-kubernetes-preserve-unknown-fields": True,
        }
    ),
]
"""An object in somebody else's words, which the API server keeps as it is."""

WebAddress = Annotated[
    str,
    StringConstraints(min_length=8, max_length=512),
    matches(
        "https?://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?(/[A-Za-z0-9._~-]+)*",
        "write https://HOST or https://HOST:PORT/PATH, without '/' at the end",
    ),
]

Duration = Annotated[
    str,
    StringConstraints(min_length=2, max_length=16),
    matches(
        DURATION_PATTERN, "a duration counts hours, minutes and seconds: write 90s, 10m or 1h30m"
    ),
]


def within(least: str, most: str) -> Checked:
    """Require a duration between two others; other texts are refused elsewhere."""
    is_duration = f"self.matches('^{DURATION_PATTERN}$')"
    return Checked(
        Rule(
            cel=f"!{is_duration} || duration(self) >= duration('{least}') && "
            f"duration(self) <= duration('{most}')",
            holds=lambda text: (
                re.fullmatch(DURATION_PATTERN, text) is None
                or duration_s(least) <= duration_s(text) <= duration_s(most)
            ),
            message=f"write a duration from {least} to {most}",
        )
    )


Fraction = Annotated[
    str,
    StringConstraints(min_length=1, max_length=6),
    matches(
        "(0[.]0{0,3}[1-9][0-9]{0,3}|1([.]0{1,4})?)",
        "a fraction is a number above 0 and at most 1 in quotes: write '0.9'",
    ),
]

Percent = Annotated[
    str,
    StringConstraints(min_length=2, max_length=6),
    matches(
        PERCENT_PATTERN, "a percentage is a number below 100 with a percent sign: write '2.5%'"
    ),
]


CorsOrigin = Annotated[
    str,
    StringConstraints(min_length=1, max_length=255),
    matches(
        CORS_ORIGIN_PATTERN,
        "an origin is a scheme and a host in lower case, with a port if it is not the usual one, "
        "and without a path, such as https://chat.example.com; * permits all",
    ),
]
HttpUrl = Annotated[
    str,
    StringConstraints(min_length=1, max_length=2048),
    matches(HTTP_URL_PATTERN, "a URL begins with http:// or https://"),
]
RequestLabel = Annotated[
    str,
    StringConstraints(min_length=1, max_length=32),
    matches(
        REQUEST_LABEL_PATTERN,
        "a request label has at most 32 lower case letters, digits and ._- and begins and ends "
        "with a letter or digit",
    ),
]


def _digits(value: Any) -> Any:
    """Write a whole number as text: users write `nvidia.com/gpu: 1`."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


_COUNT_OR_PERCENT: Final[Rule[int | str]] = Rule(
    cel="type(self) == int || self.matches('^([0-9]|[1-9][0-9]|100)%$')",
    holds=lambda it: isinstance(it, int) or re.fullmatch("([0-9]|[1-9][0-9]|100)%", it) is not None,
    message="write a number of pods, or a percentage of replicas such as 25%",
)

CountOrPercent = Annotated[
    Annotated[int, Field(strict=True, ge=0, le=1000)] | Annotated[str, Field(strict=True)],
    Checked(_COUNT_OR_PERCENT),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "maxLength": 4,
            "minimum": 0,
            "maximum": 1000,
            **as_validations((_COUNT_OR_PERCENT,)),
        }
    ),
]
"""As maxSurge of a Deployment: 1 or 25%."""

QUANTITY_RULE: Final[Rule[str]] = Rule(
    cel=f"type(self) == int || self.matches('{QUANTITY_PATTERN}')",
    holds=is_quantity,
    message="a quantity is a whole number or a text of digits and a unit: "
    "write 2, '0.5', 500m, 16Gi or the like",
)

_MIN_BYTES: Final = "1Mi"

BYTE_SIZE_RULE: Final[Rule[str]] = Rule(
    cel="!isQuantity(string(self)) || "
    f"quantity(string(self)).compareTo(quantity('{_MIN_BYTES}')) >= 0",
    holds=lambda text: not is_quantity(text) or amount(text) >= amount(_MIN_BYTES),
    message=f"a size counts bytes and is at least {_MIN_BYTES}: add a unit, such as 8Gi",
)


def _quantity_schema(*rules: Rule[str]) -> WithJsonSchema:
    return WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "maxLength": MAX_QUANTITY_LENGTH,
            "minimum": 0,
            **as_validations(rules),
        }
    )


Quantity = Annotated[
    str,
    StringConstraints(max_length=MAX_QUANTITY_LENGTH),
    Checked(QUANTITY_RULE),
    BeforeValidator(_digits),
    _quantity_schema(QUANTITY_RULE),
]

ByteSize = Annotated[
    str,
    StringConstraints(max_length=MAX_QUANTITY_LENGTH),
    Checked(QUANTITY_RULE, BYTE_SIZE_RULE),
    BeforeValidator(_digits),
    _quantity_schema(QUANTITY_RULE, BYTE_SIZE_RULE),
]
