"""Kubernetes quantities, the subset that the contract accepts: 2, 500m, 1.5Gi."""

import re
from decimal import ROUND_CEILING, Decimal
from typing import Final

MAX_QUANTITY_LENGTH: Final = 32
QUANTITY_PATTERN: Final = "^([0-9]+|[0-9]+[.][0-9]+)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"

_QUANTITY: Final = re.compile(QUANTITY_PATTERN)

_FACTORS: Final = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", start=1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", start=1)},
}


def is_quantity(text: str) -> bool:
    """Return whether `text` is a quantity: digits, an optional fraction, an optional unit."""
    return len(text) <= MAX_QUANTITY_LENGTH and _QUANTITY.fullmatch(text) is not None


def amount(quantity: str) -> Decimal:
    digits = quantity.rstrip("mkKMGTPEi")
    return Decimal(digits) * _FACTORS[quantity[len(digits) :]]


def whole_amount(quantity: str) -> int:
    """Return the value of `quantity`, rounded up as Kubernetes does."""
    return int(amount(quantity).to_integral_value(ROUND_CEILING))
