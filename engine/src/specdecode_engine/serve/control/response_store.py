"""Finished responses of POST /v1/responses that clients may read and continue, in memory alone.

A response belongs to the digest of the API key that created it. Others find nothing under its name,
exactly as under a name that no response has.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Set
from dataclasses import dataclass

from specdecode_api.response_names import has_issued, new_key, new_name

MAX_AGE_SECONDS = 3600.0
RECORD_BYTES = 1024
"""Counted for each response next to its text: more than its objects and table entries take."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One response.

    `response` is its JSON, as the client got it. `items` are the input items of the whole
    conversation before it, one line of JSON each; the last `num_new` came with its request.
    `created_s` is on the store's clock.
    """

    owner: bytes
    created_s: float
    response: bytes
    items: bytes
    num_new: int

    @property
    def num_bytes(self) -> int:
        return len(self.response) + len(self.items) + RECORD_BYTES


class ResponseStore:
    """Responses by name, at most `max_bytes` of them, the oldest dropped first.

    Owned by the event loop.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, max_bytes: int, clock: Callable[[], float]) -> None:
        self.max_bytes = max_bytes
        self.key = new_key()
        self.num_bytes = 0
        self._clock = clock
        self._records: OrderedDict[str, StoredResponse] = OrderedDict()
        self._owners: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return len(self._records)

    def new_name(self) -> str:
        return new_name(self.key)

    def has_issued(self, name: str) -> bool:
        """Whether a name leads here: routers send only requests with such names."""
        return has_issued(self.key, name)

    def put(self, name: str, owner: bytes, response: bytes, items: bytes, num_new: int) -> bool:
        """Keep a response; return False, without a change, if it exceeds the whole store."""
        record = StoredResponse(owner, self._clock(), response, items, num_new)
        if record.num_bytes > self.max_bytes:
            return False
        self._drop(name)
        self.expire()
        while self.num_bytes + record.num_bytes > self.max_bytes:
            self._drop(next(iter(self._records)))
        self._records[name] = record
        self.num_bytes += record.num_bytes
        self._owners[owner] += 1
        return True

    def get(self, name: str | None, owner: bytes) -> StoredResponse | None:
        """Return a response of this owner that has not expired, if there is one."""
        record = self._records.get(name or "")
        if record is None or record.owner != owner or self._is_expired(record):
            return None
        return record

    def remove(self, name: str | None, owner: bytes) -> bool:
        """Forget a response; return whether `get` would have found it."""
        if name is None or self.get(name, owner) is None:
            return False
        self._drop(name)
        return True

    def expire(self) -> None:
        """Forget responses that are too old."""
        while self._records and self._is_expired(next(iter(self._records.values()))):
            self._drop(next(iter(self._records)))

    def keep_owners(self, owners: Set[bytes]) -> None:
        """Forget the responses of all other owners."""
        if self._owners.keys() <= owners:
            return
        for name in [name for name, each in self._records.items() if each.owner not in owners]:
            self._drop(name)

    def clear(self) -> None:
        """Forget all responses."""
        self._records.clear()
        self._owners.clear()
        self.num_bytes = 0

    def _is_expired(self, record: StoredResponse) -> bool:
        return self._clock() - record.created_s >= MAX_AGE_SECONDS

    def _drop(self, name: str) -> None:
        record = self._records.pop(name, None)
        if record is None:
            return
        self.num_bytes -= record.num_bytes
        self._owners[record.owner] -= 1
        if not self._owners[record.owner]:
            del self._owners[record.owner]
