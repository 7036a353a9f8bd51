"""What one look at the pods brought: their readings, who is silent, who refused a table."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from specdecode_operator.fleet import Reading


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """A look at the pods of a resource; `at_s` is in seconds since 1970."""

    at_s: float
    readings: Mapping[str, Reading] = field(default_factory=dict)
    """By the uid of the pod."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """Why a pod was not read, by its name."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Why a pod cannot take a table without a restart, by its name."""
