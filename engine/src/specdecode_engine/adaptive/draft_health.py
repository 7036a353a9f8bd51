"""Detects a draft that does not fit its target, and decodes without it from then on.

A draft of another revision, with another RoPE layout or with wrong aux hidden states raises no
error: the target accepts next to nothing of it, and every step pays for drafting. This is the only
judgement of a draft as such: whether draft steps pay at a batch size is the policy's decision.

The test of `draft_evidence` runs over the whole life of an engine. Its error is spent on epochs: a
new one begins after `EPOCH_PROPOSALS`, so that a change of traffic is noticed, and the k-th has the
error ERROR / (k (k + 1)), which adds up to ERROR.

While a draft is unfit, nothing is kept for it, so that a step costs what it costs without a draft.
A few requests probe the draft: their prompts pass it as a whole, and their first decode steps
draft. A probe begins when the whole time of all probes is at most `BUDGET` of that of all steps. A
draft whose acceptance is above the limit in a window of probes is used again.
"""

from dataclasses import asdict, dataclass, field
from enum import StrEnum

from specdecode_engine.adaptive.draft_evidence import ACCEPTANCE, FirstPosition
from specdecode_engine.adaptive.policy import Decision, Reason
from specdecode_engine.adaptive.table import BatchRange, RangeTable

ERROR = 0.01
MIN_PROPOSALS, MIN_REQUESTS = 200, 20
MAX_PER_REQUEST = 32
"""Proposals of one request that count: an answer that repeats itself would outweigh the others."""
EPOCH_PROPOSALS = 20_000
BUDGET = 0.005  # share of the time of all steps that those of probes may take
PROBE_STEPS = 8  # of one probe: the first decode steps of one request
PROBE_INTERVAL = 512  # least steps from one probe to the next
WINDOW_PROPOSALS = 64  # of the probes that are judged together
CAUSES = (
    "a draft for another target or another revision of it; the other RoPE layout (half, "
    "interleaved); wrong aux hidden state layers; a norm that is missing or lacks its 1 + weight; "
    "a wrong map of the draft's vocabulary (d2t); the embedding of another vocabulary"
)


class Fitness(StrEnum):
    """Whether the draft fits the target."""

    UNKNOWN = "unknown"
    FIT = "fit"
    UNFIT = "unfit"


@dataclass(frozen=True, slots=True)
class DraftReport:
    """What is known of the draft; `evidence` is that of the verdict, or what there is so far."""

    fitness: Fitness = Fitness.UNKNOWN
    evidence: FirstPosition = field(default_factory=FirstPosition)
    probes: int = 0

    @property
    def is_unfit(self) -> bool:
        return self.fitness is Fitness.UNFIT

    def document(self) -> dict[str, object]:
        """Describe it as JSON."""
        return {
            "fitness": self.fitness.value,
            **asdict(self.evidence),
            "probes": self.probes,
            "description": self.description,
        }

    @property
    def description(self) -> str:
        """The fitness, its evidence, and what to do, for people to read."""
        seen = self.evidence
        counts = (
            f"the target accepted {seen.accepted} of {seen.proposed} first draft tokens in "
            f"{seen.requests} requests"
        )
        match self.fitness:
            case Fitness.UNKNOWN:
                return f"whether the draft fits the target is not known yet: {counts}"
            case Fitness.FIT:
                return f"the draft fits the target: {counts}"
            case Fitness.UNFIT:
                return (
                    f"the draft does not fit the target: {counts}, which is below "
                    f"{ACCEPTANCE:.0%} at {1 - ERROR:.0%} confidence; the engine decodes without "
                    f"it. Probable causes: {CAUSES}. Serve the draft that was trained for this "
                    "target, or set algorithm NONE"
                )


class DraftHealth:
    """The fitness of one draft, and the decisions while it is unfit. Owned by the engine core."""

    def __init__(self) -> None:
        self._set(Fitness.UNKNOWN)
        self._epoch = 1
        self._evidence = FirstPosition()
        self._is_paused = False
        # While the draft is unfit:
        self._probes = 0
        self._steps = self._probed_at = self._probe_steps = 0
        self._busy_s = self._probe_s = self._latest_probe_s = 0.0

    @property
    def is_probe_due(self) -> bool:
        """Whether the next request that can be evidence is to probe the draft."""
        if not self.is_unfit or self._steps - self._probed_at < PROBE_INTERVAL:
            return False
        return self._probe_s + self._latest_probe_s <= BUDGET * self._busy_s

    @property
    def is_probing(self) -> bool:
        """Whether a request that probes the draft is to draft when it decodes."""
        return self._probe_steps > 0

    def begin_probe(self) -> None:
        """Let the first decode steps of a request that is admitted now draft."""
        self._probes += 1
        self._probed_at, self._probe_steps = self._steps, PROBE_STEPS
        self._latest_probe_s = 0.0

    def decide(self, table: RangeTable, batch_size: int, *, has_probe: bool) -> Decision:
        """Choose for a batch while the draft is unfit: 0 draft steps, unless a probe is decoding.

        Args:
            has_probe: whether the batch has a request whose prompt passed the draft.
        """
        entry = table.range_of(batch_size)
        self._steps += 1
        if not (has_probe and self.is_probing):
            return Decision(0, entry.lower_bound, 0, Reason.UNFIT)
        self._probe_steps -= 1
        return Decision(_fewest_steps(entry), entry.lower_bound, 0, Reason.UNFIT_PROBE)

    def observe(self, decision: Decision, first: FirstPosition, seconds: float) -> bool:
        """Learn from a decode step, and return whether the fitness has changed.

        Args:
            decision: of `decide` or of a policy.
            first: new evidence of the step.
            seconds: time of the step; infinite or NaN if unknown.
        """
        before = self.fitness
        if self._is_paused:
            return False
        if self.is_unfit:
            is_probe = decision.reason is Reason.UNFIT_PROBE
            self.account(seconds, is_probe=is_probe)
            if is_probe:
                self._judge_probes(first)
        elif first.proposed:
            self._judge(first)
        return self.fitness is not before

    def pause(self) -> None:
        """Forget the verdict and stop judging: the draft is being exchanged."""
        self._set(Fitness.UNKNOWN)
        self._evidence, self._is_paused = FirstPosition(), True

    def account(self, seconds: float, *, is_probe: bool) -> None:
        """Note the time of a step or of prompts while the draft is unfit."""
        if not 0.0 < seconds < float("inf"):
            return
        self._busy_s += seconds
        if is_probe:
            self._probe_s += seconds
            self._latest_probe_s += seconds

    def report(self) -> DraftReport:
        return DraftReport(self.fitness, self._verdict or self._evidence, self._probes)

    def _judge(self, first: FirstPosition) -> None:
        self._evidence += first
        seen = self._evidence
        if seen.proposed < MIN_PROPOSALS or seen.requests < MIN_REQUESTS:
            return
        error = ERROR / (self._epoch * (self._epoch + 1))
        if seen.is_below(error):
            self._set(Fitness.UNFIT, seen)
            self._rest()
        elif self.fitness is Fitness.UNKNOWN and seen.is_above(ERROR):
            self._set(Fitness.FIT, seen)
        if self.is_unfit or seen.proposed >= EPOCH_PROPOSALS:
            self._evidence = FirstPosition()
            self._epoch += 1

    def _judge_probes(self, first: FirstPosition) -> None:
        self._evidence += first
        if self._evidence.is_above(ERROR):
            self._set(Fitness.UNKNOWN)
            self._evidence = FirstPosition()
        elif self._evidence.proposed >= WINDOW_PROPOSALS:
            self._evidence = FirstPosition()

    def _set(self, fitness: Fitness, verdict: FirstPosition | None = None) -> None:
        self.fitness, self._verdict = fitness, verdict
        self.is_unfit = fitness is Fitness.UNFIT  # each step reads it several times

    def _rest(self) -> None:
        """Begin a time without the draft."""
        self._steps = self._probed_at = self._probe_steps = 0
        self._busy_s = self._probe_s = self._latest_probe_s = 0.0


def _fewest_steps(entry: BatchRange) -> int:
    """Return the fewest draft steps of a range that drafts, or 0."""
    return next((steps for steps in entry.candidate_steps if steps), 0)
