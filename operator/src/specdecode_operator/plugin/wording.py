"""Formats ages, rates and shares."""

import argparse

from specdecode_api.key_mask import without_key


def age(seconds: float | None) -> str:
    """An age in at most two units, as in kubectl."""
    if seconds is None:
        return ""
    whole = int(seconds)
    if whole < 120:
        return f"{whole}s"
    if whole < 600:
        return f"{whole // 60}m{whole % 60}s"
    if whole < 3 * 3600:
        return f"{whole // 60}m"
    if whole < 48 * 3600:
        return f"{whole // 3600}h"
    return f"{whole // 86400}d"


def number(value: float | None, digits: int) -> str:
    """A number, or a dash for None."""
    return "–" if value is None else f"{value:,.{digits}f}"


def share(value: float | None) -> str:
    """A fraction as percent, or a dash for None."""
    return "–" if value is None else f"{value:.0%}"


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_of(text: str) -> int:
    """Read an age such as 90s, 5m, 2h or 1d.

    Raises:
        argparse.ArgumentTypeError: the text is not an age.
    """
    digits, unit = text[:-1], text[-1:]
    if not digits.isdigit() or unit not in _UNITS or int(digits) == 0:
        raise argparse.ArgumentTypeError(
            f"{without_key(text)!r} is not an age; use 90s, 5m, 2h or 1d"
        )
    return int(digits) * _UNITS[unit]
