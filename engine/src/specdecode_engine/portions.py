"""What one request did, band by band of batch sizes, while one table decided on its depths.

A request counts once, in the band of most of its decode rounds, with what it did in that band: so
the requests of a stratum are independent of each other and ran at comparable batch sizes.
"""


class Portion:
    """Decode rounds of one request in one band: how many, how long, and what they added."""

    __slots__ = ("rounds", "seconds", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.rounds = 0
        self.seconds = 0.0


class Portions:
    """The portions of one request; told of every decode round that it took part in."""

    __slots__ = ("_band", "_by_band", "_now", "is_mixed", "table")

    def __init__(self) -> None:
        self.table = ""
        self.is_mixed = False  # whether rounds of more than one table decoded it
        self._by_band: dict[int, Portion] = {}
        self._band = 0
        self._now = Portion()

    def note(self, table: str, band: int, tokens: int, seconds: float) -> None:
        """Count a round: `tokens` were kept of it, `seconds` it took for all its requests."""
        if band != self._band:
            self._now = self._by_band.setdefault(band, Portion())
            self._band = band
        if table != self.table:
            self.is_mixed = bool(self.table)
            self.table = table
        now = self._now
        now.tokens += tokens
        now.rounds += 1
        now.seconds += seconds

    def main(self) -> tuple[int, Portion] | None:
        """The band of most rounds, of several the smallest, and its portion; None without any."""
        if not self._by_band:
            return None
        return max(self._by_band.items(), key=lambda item: (item[1].rounds, -item[0]))
