"""Runs a policy through a scenario and counts what it and the best depth emit.

Tokens are counted by expectation under the true rates, times by the true cost, so that regret has
no sampling noise of its own; the policy sees samples and noisy times.
"""

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from bench.simulation.policy.chooser import Chooser
from bench.simulation.policy.loads import DEEPEST, Segment
from bench.simulation.policy.profiles import Profile
from bench.simulation.policy.rivals.clairvoyant import Clairvoyant
from bench.simulation.policy.scenarios import Scenario
from specdecode_engine.adaptive.policy import Feedback, Reason, StaticPolicy

TIME_NOISE = 0.04  # standard deviation of the logarithm
SPIKE_CHANCE, SPIKE = 0.005, 4.0


@dataclass(frozen=True, slots=True)
class Moment:
    """A step under the load at this moment, for every depth."""

    segment: int
    batch_size: int
    kv_tokens: int
    mood: int
    rates: tuple[float, ...]  # true tokens per second of the batch by depth, no catching up
    best: float  # of the best depth, by the mean over moods


@dataclass(frozen=True, slots=True)
class Trace:
    """One step and its result."""

    moment: Moment
    num_steps: int
    is_probe: bool
    seconds: float
    tokens: float


@dataclass(slots=True)
class Tally:
    """What a run has come to; written by `run` only."""

    seconds: float = 0.0
    tokens: float = 0.0
    best_tokens: float = 0.0
    plain_tokens: float = 0.0
    gaps_s: list[float] = field(default_factory=list)  # as measured
    unreachable: int = 0
    traces: list[Trace] = field(default_factory=list)

    def add(self, trace: Trace) -> None:
        """Count a step."""
        self.seconds += trace.seconds
        self.tokens += trace.tokens
        self.best_tokens += trace.moment.best * trace.seconds
        self.plain_tokens += trace.moment.rates[0] * trace.seconds
        self.traces.append(trace)

    @property
    def regret(self) -> float:
        """Share of the best tokens that was not emitted."""
        return 1.0 - self.tokens / self.best_tokens

    @property
    def loss_to_plain(self) -> float:
        """Share of the tokens without speculation that was not emitted; 0 where more was."""
        return max(0.0, 1.0 - self.tokens / self.plain_tokens)


class World:
    """A scenario on a machine, as one seed has it."""

    def __init__(self, profile: Profile, scenario: Scenario, seed: int) -> None:
        self._profile = profile
        self._scenario = scenario
        self._random = random.Random(f"{profile.name} {scenario.name} {seed}")
        self._known: dict[tuple[int, int, int], Moment] = {}
        self._truths: dict[tuple[int, int], tuple[list[float], list[float]]] = {}
        self._weights = [
            [[crowd.lengths() for crowd in mood] for mood in segment.moods]
            for segment in scenario.segments
        ]

    def run(self, policy: Chooser) -> Tally:
        """Serve the whole scenario."""
        tally = Tally()
        late: deque[Feedback] = deque()
        missed = 0
        learns = not isinstance(policy, StaticPolicy | Clairvoyant)
        for moment in self._moments(tally):
            if isinstance(policy, Clairvoyant):
                policy.see(moment.batch_size, *self._truth(moment))
            decision = policy.decide(moment.batch_size, moment.kv_tokens)
            steps = decision.num_steps
            seconds = self._profile.seconds(moment.batch_size, steps, moment.kv_tokens)
            tokens = moment.rates[steps] * seconds
            if steps and missed:
                seconds += self._profile.catching_up_s(moment.batch_size, missed)
            missed = 0 if steps else missed + 1
            is_probe = decision.reason is Reason.PROBE
            tally.add(Trace(moment, steps, is_probe, seconds, tokens))
            if not learns:
                continue
            accepted = self._accepted(moment, steps)
            gap_s = seconds * noise_factor(self._random)
            tally.gaps_s.append(gap_s)
            tally.unreachable += decision.reason is Reason.UNREACHABLE
            late.append(
                Feedback(
                    decision,
                    moment.batch_size,
                    moment.kv_tokens,
                    accepted,
                    gap_s,
                    gap_s=gap_s,
                )
            )
            if len(late) > self._profile.late_steps:
                policy.observe(late.popleft())
        return tally

    def _moments(self, tally: Tally) -> Iterator[Moment]:
        """Yield a segment's moments until its time, which `tally` counts, is over."""
        over = 0.0
        for place, segment in enumerate(self._scenario.segments):
            size, mood, number = segment.sizes[0], 0, 0
            kv = segment.kv_per_request * size
            over += segment.steps * self._profile.seconds(size, 3, kv)
            while tally.seconds < over:
                size = segment.sizes[number % len(segment.sizes)]
                if len(segment.moods) > 1 and self._random.random() * segment.mood_steps < 1.0:
                    mood = self._random.randrange(len(segment.moods))
                yield self._moment(place, size, mood)
                number += 1

    def _moment(self, place: int, size: int, mood: int) -> Moment:
        found = self._known.get((place, size, mood))
        if found is None:
            segment = self._scenario.segments[place]
            tables = [self._table(segment, size, other) for other in range(len(segment.moods))]
            best = max(sum(table[k] for table in tables) for k in range(DEEPEST + 1))
            kv = segment.kv_per_request * size
            found = Moment(place, size, kv, mood, tables[mood], best / len(tables))
            self._known[place, size, mood] = found
        return found

    def _truth(self, moment: Moment) -> tuple[list[float], list[float]]:
        """Tokens and seconds by depth, whatever the mood."""
        cell = moment.segment, moment.batch_size
        if cell not in self._truths:
            self._truths[cell] = self._work_out(moment)
        return self._truths[cell]

    def _work_out(self, moment: Moment) -> tuple[list[float], list[float]]:
        segment = self._scenario.segments[moment.segment]
        size, kv = moment.batch_size, moment.kv_tokens
        tables = [segment.expected(mood) for mood in range(len(segment.moods))]
        tokens = [sum(column) for column in zip(*tables, strict=True)]
        return tokens, [self._profile.seconds(size, k, kv) for k in range(DEEPEST + 1)]

    def _table(self, segment: Segment, size: int, mood: int) -> tuple[float, ...]:
        kv = segment.kv_per_request * size
        return tuple(
            size * tokens / self._profile.seconds(size, steps, kv)
            for steps, tokens in enumerate(segment.expected(mood))
        )

    def _accepted(self, moment: Moment, steps: int) -> tuple[int, ...]:
        if not steps:
            return (0,) * moment.batch_size
        crowds = self._scenario.segments[moment.segment].moods[moment.mood]
        lengths = [min(length, steps) for length in range(DEEPEST + 1)]
        accepted: list[int] = []
        for crowd, weights in zip(crowds, self._weights[moment.segment][moment.mood], strict=True):
            left = moment.batch_size - len(accepted)
            count = left if crowd is crowds[-1] else round(crowd.share * moment.batch_size)
            accepted += self._random.choices(lengths, cum_weights=weights, k=count)
        return tuple(accepted)


def noise_factor(draw: random.Random) -> float:
    """Draw measured over true seconds of a step."""
    noise = draw.lognormvariate(0.0, TIME_NOISE)
    return noise * SPIKE if draw.random() < SPIKE_CHANCE else noise
