"""Statistics of one request per band of batch sizes, under the table that set its depths.

A request counts once, in the band of most of its decode steps, with its numbers in that band: so
the requests of a stratum are independent of each other and ran at comparable batch sizes.
"""


class BucketStats:
    """Decode steps of one request in one band: count, seconds and tokens."""

    __slots__ = ("rounds", "seconds", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.rounds = 0
        self.seconds = 0.0


class RequestBucketStats:
    """Statistics of one request per band; updated after each of its decode steps."""

    __slots__ = ("_band", "_by_band", "_now", "is_mixed", "table")

    def __init__(self) -> None:
        self.table = ""
        self.is_mixed = False  # whether steps under more than one table decoded it
        self._by_band: dict[int, BucketStats] = {}
        self._band = 0
        self._now = BucketStats()

    def note(self, table: str, band: int, tokens: int, seconds: float) -> None:
        """Count a step: it kept `tokens` and took `seconds` for the whole batch."""
        if band != self._band:
            self._now = self._by_band.setdefault(band, BucketStats())
            self._band = band
        if table != self.table:
            self.is_mixed = bool(self.table)
            self.table = table
        now = self._now
        now.tokens += tokens
        now.rounds += 1
        now.seconds += seconds

    def main(self) -> tuple[int, BucketStats] | None:
        """The band with the most steps, the smallest of equals, and its stats; None if empty."""
        if not self._by_band:
            return None
        return max(self._by_band.items(), key=lambda item: (item[1].rounds, -item[0]))
