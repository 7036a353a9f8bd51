"""What the engine counts over its life, in all and per range of batch sizes."""

from dataclasses import dataclass, field

from specdecode_api.series import batch_band
from specdecode_engine.depth.decision import Decision, Feedback, Reason
from specdecode_engine.depth.survival import count_round
from specdecode_engine.load import RecentRounds


@dataclass(slots=True)
class DecodeTotals:
    """Monotonic totals of decode rounds.

    `request_rounds` counts a round once per request in it, so that `emitted_tokens` by it is the
    accept length, the bonus token included.
    """

    rounds: int = 0
    request_rounds: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    emitted_tokens: int = 0
    seconds: float = 0.0

    def add(self, other: "DecodeTotals") -> None:
        """Count what `other` counted as well."""
        self.rounds += other.rounds
        self.request_rounds += other.request_rounds
        self.drafted_tokens += other.drafted_tokens
        self.accepted_tokens += other.accepted_tokens
        self.emitted_tokens += other.emitted_tokens
        self.seconds += other.seconds

    @property
    def wasted_tokens(self) -> int:
        """Drafted tokens that the target did not keep."""
        return self.drafted_tokens - self.accepted_tokens


@dataclass(slots=True)
class DepthTotals:
    """Monotonic totals of the decode rounds of one depth in one band of batch sizes."""

    rounds: int = 0
    request_rounds: int = 0
    busy_seconds: float = 0.0


@dataclass(slots=True)
class PositionTotals:
    """How often the draft reached a position behind accepted tokens only, and was kept there."""

    reached: int = 0
    accepted: int = 0


@dataclass(slots=True)
class Counters:
    """Owned by the engine core."""

    steps: int = 0
    mixed_rounds: int = 0  # decode rounds whose pass computed prompts too
    prompt_tokens: int = 0
    prefill_seconds: float = 0.0
    decode: DecodeTotals = field(default_factory=DecodeTotals)
    recent: RecentRounds = field(default_factory=RecentRounds)
    ranges: dict[int, DecodeTotals] = field(default_factory=dict)  # by lower bound
    switches: dict[tuple[int, Reason], int] = field(default_factory=dict)
    depths: dict[tuple[int, int], DepthTotals] = field(default_factory=dict)  # by band, depth
    positions: dict[tuple[int, int], PositionTotals] = field(default_factory=dict)
    latest: Decision | None = None  # of the newest decode round

    def decide(self, decision: Decision) -> None:
        """Note the decision that a round is launched under; a change of depth is a switch."""
        if self.latest is not None and self.latest.num_steps != decision.num_steps:
            key = (decision.slot, decision.reason)
            self.switches[key] = self.switches.get(key, 0) + 1
        self.latest = decision

    def count(self, decision: Decision, totals: DecodeTotals) -> None:
        """Count a finished round, for the range that decided it too."""
        self.decode.add(totals)
        self.recent.count(totals.emitted_tokens, totals.request_rounds)
        self.ranges.setdefault(decision.slot, DecodeTotals()).add(totals)

    def learn(self, feedback: Feedback) -> None:
        """Count what a finished round says of its depth and its draft, whatever policy runs."""
        band, num_steps = batch_band(feedback.batch_size), feedback.decision.num_steps
        if feedback.is_alone:
            depth = self.depths.setdefault((band, num_steps), DepthTotals())
            depth.rounds += 1
            depth.request_rounds += feedback.batch_size
            depth.busy_seconds += feedback.seconds
        reached, accepted = count_round(feedback.accepted, num_steps)
        for place, trials in enumerate(reached):
            position = self.positions.setdefault((band, place + 1), PositionTotals())
            position.reached += trials
            position.accepted += accepted[place]
