"""Durations (90s, 10m, 1h30m) and percentages (3%, 0.5%)."""

import re
from typing import Final

DURATION_PATTERN: Final = "([0-9]{1,4}h)?([0-9]{1,5}m)?([0-9]{1,6}s)?"
"""Hours, minutes and seconds as in Kubernetes; each is optional, but the text is not empty."""

PERCENT_PATTERN: Final = "[0-9]{1,2}([.][0-9]{1,2})?%"

_UNITS: Final = {"h": 3600, "m": 60, "s": 1}


def duration_s(text: str) -> int:
    return sum(int(digits) * _UNITS[unit] for digits, unit in re.findall("([0-9]+)([hms])", text))


def part_of_one(text: str) -> float:
    """Return a valid percentage as a fraction."""
    return float(text.removesuffix("%")) / 100
