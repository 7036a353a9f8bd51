"""How long answers of 401 and 403 are retried before they count as missing permissions.

An API server that has just started answers 401 or 403 until its caches of roles, tokens and
admission plugins are filled, so one such answer proves nothing.
"""

from collections.abc import Callable, Hashable
from http import HTTPStatus
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

DENIED = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})

PERMISSION_GRACE_S = 30.0
"""At the start, until the permission is reported as missing. The caches take seconds to fill, some
ten of them on a busy machine."""

APPLY_GRACE_S = 10.0
"""Until a resource reports a refused write. Shorter, because policies and quotas refuse with 403
as well, and the user should see their message soon."""


class Denials(Generic[K]):
    """Since when the writes of each resource have been answered with 401 or 403 without a break."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[K, float] = {}

    def is_recent(self, key: K, code: int) -> bool:
        """Note a refused write; returns whether it should be retried instead of reported."""
        if code not in DENIED:
            return False
        now_s = self._clock()
        return now_s - self._since.setdefault(key, now_s) < APPLY_GRACE_S

    def clear(self, key: K) -> None:
        """Note that all writes of a resource succeeded, or that the resource is gone."""
        self._since.pop(key, None)
