"""How often each kernel was launched, counted on the host: tests prove by it that a path ran."""

from collections import Counter

from specdecode_kernels.implementation import Implementation

_LAUNCHES: Counter[tuple[str, Implementation]] = Counter()


def count(op: str, implementation: Implementation) -> None:
    """Count one launch."""
    _LAUNCHES[op, implementation] += 1


def snapshot() -> Counter[tuple[str, Implementation]]:
    """Launches since the last reset, as a copy."""
    return _LAUNCHES.copy()


def reset() -> None:
    """Start to count anew."""
    _LAUNCHES.clear()
