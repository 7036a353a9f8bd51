"""JSON merge patches (RFC 7386): a partial document in which null removes a field."""

from collections.abc import Mapping
from typing import Any


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply `patch` to `target` (RFC 7386, section 2); neither is changed.

    Objects are merged recursively; any other value, lists included, replaces the target's.
    """
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def difference(source: Any, target: Any) -> Any:
    """Return the smallest merge patch that makes `target` of `source`; {} if they are equal.

    A null inside `target` cannot be expressed and is treated as absent.
    """
    if not isinstance(source, Mapping) or not isinstance(target, Mapping):
        return target
    wanted = {name: value for name, value in target.items() if value is not None}
    removed: dict[str, Any] = {name: None for name in source if name not in wanted}
    changed = {
        name: difference(source[name], value) if name in source else value
        for name, value in wanted.items()
        if name not in source or source[name] != value
    }
    return removed | changed
