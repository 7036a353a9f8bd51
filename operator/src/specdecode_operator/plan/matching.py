"""Whether a live object already has every field of a desired manifest."""

from typing import Any

from specdecode_api.quantity import amount, is_quantity

_QUANTITIES = frozenset({"limits", "requests"})
_SIZES = frozenset({"sizeLimit", "storage", "divisor"})
_ATOMIC = frozenset({"nodeSelector", "selector"})
"""Maps that server-side apply replaces as a whole: a key that others added is a difference."""
_PLAIN = frozenset({
    "hostIPC", "hostNetwork", "hostPID", "hostPort", "initialDelaySeconds", "limits", "matchLabels",
    "nodeSelector", "overhead", "paused", "readOnly", "requests", "stdin", "stdinOnce", "tty",
    "volumeAttributes",
})  # fmt: skip
"""Fields that the API server does not store where they are false, 0 or without entries."""


def is_subset(desired: Any, live: Any) -> bool:
    """Whether `desired` is part of `live`.

    Further fields of the live object (defaults, fields of other owners) are ignored; server-side
    apply would not change them either. Empty strings and lists, and the fields `_PLAIN` that are
    empty, may be absent: the API server does not store them. Lists of objects are compared as sets,
    because another owner may add items to them; lists of scalars are atomic and must be equal.
    """
    if isinstance(desired, dict):
        return isinstance(live, dict) and all(
            _is_field_subset(key, value, live[key])
            if key in live
            else value in ("", []) or (not value and key in _PLAIN)
            for key, value in desired.items()
        )
    if isinstance(desired, list):
        if not isinstance(live, list):
            return False
        if any(isinstance(item, dict) for item in desired):
            return all(any(is_subset(want, have) for have in live) for want in desired)
        return live == desired
    return bool(live == desired) and isinstance(live, bool) == isinstance(desired, bool)


def _is_field_subset(key: str, desired: Any, live: Any) -> bool:
    if key in _ATOMIC:
        return bool(live == desired)
    if key in _SIZES:
        return _is_same(live, desired)
    if key in _QUANTITIES and isinstance(live, dict) and isinstance(desired, dict):
        return all(name in live and _is_same(live[name], desired[name]) for name in desired)
    return is_subset(desired, live)


def _is_same(live: object, desired: object) -> bool:
    """Compare amounts, not spellings: the API server rewrites `1000m` to `1`."""
    left, right = str(live), str(desired)
    if is_quantity(left) and is_quantity(right):
        return amount(left) == amount(right)
    return left == right
