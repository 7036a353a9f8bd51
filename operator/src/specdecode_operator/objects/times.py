"""Times in objects of the API server: of conditions, events and metadata."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


def time_of(part: Mapping[str, Any], field: str) -> datetime | None:
    """A time in RFC 3339; None where the field is missing or has no valid time."""
    try:
        found = datetime.fromisoformat(str(part.get(field) or ""))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def seconds_since(part: Mapping[str, Any], field: str, at: datetime) -> float:
    """Seconds from a time in an object until `at`; 0 without one, or if clocks differ."""
    began = time_of(part, field)
    return max(0.0, (at - began).total_seconds()) if began is not None else 0.0
