"""What the engine counts over its life, in all and per range of batch sizes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from specdecode_api.metrics import batch_band
from specdecode_engine.adaptive.acceptance import count_by_position
from specdecode_engine.adaptive.policy import Decision, Feedback, Reason
from specdecode_engine.stats.load_metric import RecentSteps


@dataclass(slots=True)
class DecodeTotals:
    """Monotonic totals of decode steps.

    `request_rounds` counts a step once per request in it, so that `emitted_tokens` divided by it is
    the accept length, the bonus token included.
    """

    rounds: int = 0
    request_rounds: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    emitted_tokens: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, drafted: int, accepted: Sequence[int], seconds: float) -> "DecodeTotals":
        """Count one decode step.

        Args:
            drafted: tokens drafted per request.
            accepted: by request; each got one more token, the bonus.
        """
        requests, accepted_tokens = len(accepted), sum(accepted)
        return cls(
            rounds=1,
            request_rounds=requests,
            drafted_tokens=drafted * requests,
            accepted_tokens=accepted_tokens,
            emitted_tokens=accepted_tokens + requests,
            seconds=seconds,
        )

    def add(self, other: "DecodeTotals") -> None:
        """Add the totals of `other`."""
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

    @property
    def accept_length(self) -> float:
        """Tokens that one decode step adds to one request; 0 before the first step."""
        return self.emitted_tokens / self.request_rounds if self.request_rounds else 0.0


@dataclass(slots=True)
class StepTotals:
    """Monotonic totals of the decode steps with one number of draft steps, in one batch bucket."""

    rounds: int = 0
    request_rounds: int = 0
    busy_seconds: float = 0.0


@dataclass(slots=True)
class PositionStats:
    """How often a draft position followed accepted tokens only, and how often it was accepted."""

    reached: int = 0
    accepted: int = 0


@dataclass(slots=True)
class Counters:
    """Owned by the engine core."""

    steps: int = 0
    mixed_rounds: int = 0  # decode steps whose forward computed prompts too
    prompt_tokens: int = 0
    prefill_seconds: float = 0.0
    decode: DecodeTotals = field(default_factory=DecodeTotals)
    recent: RecentSteps = field(default_factory=RecentSteps)
    ranges: dict[int, DecodeTotals] = field(default_factory=dict)  # by lower bound
    switches: dict[tuple[int, Reason], int] = field(default_factory=dict)
    depths: dict[tuple[int, int], StepTotals] = field(default_factory=dict)  # by band, depth
    positions: dict[tuple[int, int], PositionStats] = field(default_factory=dict)
    latest: Decision | None = None  # of the newest decode step

    def decide(self, decision: Decision) -> None:
        """Record the decision that a step is launched under; a change of depth is a switch."""
        if self.latest is not None and self.latest.num_steps != decision.num_steps:
            key = (decision.range_start, decision.reason)
            self.switches[key] = self.switches.get(key, 0) + 1
        self.latest = decision

    def count(self, decision: Decision, totals: DecodeTotals) -> None:
        """Count a finished step, in total and for the range that decided it."""
        self.decode.add(totals)
        self.recent.count(totals.emitted_tokens, totals.request_rounds)
        self.ranges.setdefault(decision.range_start, DecodeTotals()).add(totals)

    def learn(self, feedback: Feedback) -> None:
        """Count what a finished step measured of its depth and its draft, under any policy."""
        band, num_steps = batch_band(feedback.batch_size), feedback.decision.num_steps
        if feedback.has_cost():
            depth = self.depths.setdefault((band, num_steps), StepTotals())
            depth.rounds += 1
            depth.request_rounds += feedback.batch_size
            depth.busy_seconds += feedback.seconds
        reached, accepted = count_by_position(feedback.accepted, num_steps)
        for place, trials in enumerate(reached):
            position = self.positions.setdefault((band, place + 1), PositionStats())
            position.reached += trials
            position.accepted += accepted[place]
