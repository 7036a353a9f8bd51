"""How often each kernel was launched, counted on the host: tests prove by it that a path ran.

The replay of a CUDA graph launches nothing from the host and is not counted.
"""

from collections import Counter

_LAUNCHES: Counter[tuple[str, str]] = Counter()


def count(op: str, implementation: str) -> None:
    """Count one launch."""
    _LAUNCHES[op, implementation] += 1


def snapshot() -> Counter[tuple[str, str]]:
    """Launches by (op, implementation) since the last reset, as a copy."""
    return _LAUNCHES.copy()


def reset() -> None:
    """Start to count anew."""
    _LAUNCHES.clear()
