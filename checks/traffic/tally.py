"""What came of the requests of one event."""

from collections import Counter
from dataclasses import dataclass, field

SHOWN = 5


@dataclass(slots=True)
class Tally:
    """Counts of one event; owned by the load that fills it. A request counts where it ends."""

    answered: int = 0
    streamed: int = 0
    failed: int = 0
    wrong_text: int = 0
    cut_by_kill: int = 0
    """Attempts that ended with a killed process; each was tried again, and must be answered."""
    kills: int = 0
    kills_with_streams: int = 0
    """Kills of engines; those that routers had requests on."""
    longest_s: float = 0.0
    failures: list[str] = field(default_factory=list)
    forms: Counter[tuple[str, bool]] = field(default_factory=Counter)
    """Answers by the form of their questions, and whether they were streamed."""

    @property
    def sent(self) -> int:
        """Requests that have ended, one way or the other."""
        return self.answered + self.failed

    def answer(
        self, seconds: float, *, is_stream: bool, is_right: bool, form: tuple[str, bool]
    ) -> None:
        """Count a whole answer."""
        self.forms[form] += 1
        self.answered += 1
        self.streamed += is_stream
        self.wrong_text += not is_right
        self.longest_s = max(self.longest_s, seconds)

    def fail(self, reason: str) -> None:
        """Count a request that was never answered."""
        self.failed += 1
        if len(self.failures) < SHOWN:
            self.failures.append(reason)
