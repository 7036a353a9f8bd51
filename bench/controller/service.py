"""Serves requests that differ, and counts what a policy, every fixed depth and the best emit.

Tokens are counted by expectation under the true rates, times by the true cost; the policy sees
samples and noisy times. What it is compared with is counted along the same states: in each step the
tokens that another choice would emit per second, times the seconds that the step took. The target's
time for prompts is left out: it is the same for all. That of the draft is the policy's loss.
"""

import random
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller.chooser import Chooser
from controller.loads import DEEPEST
from controller.profiles import Profile
from controller.rivals.verify_budget import VerifyBudget
from controller.traffic import Part, Traffic
from controller.world import SPIKE, SPIKE_CHANCE, TIME_NOISE
from specdecode_engine.adaptive.policy import Feedback
from specdecode_engine.adaptive.request_acceptance import RequestAcceptance

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
DEPTHS = np.arange(DEEPEST + 1)
ENDLESS = 1 << 30  # tokens


@dataclass(slots=True)
class Served:
    """What a run has come to; written by `serve` only."""

    seconds: float = 0.0
    tokens: float = 0.0
    best_tokens: float = 0.0  # of a policy that knows rates and costs, not outcomes
    fixed_tokens: dict[int, Floats] = field(default_factory=dict)  # by depth, by batch size
    step_s: list[float] = field(default_factory=list)

    @property
    def of_best(self) -> float:
        """Tokens to those of the best choices."""
        return self.tokens / self.best_tokens

    @property
    def to_none(self) -> float:
        """Tokens to those without speculation."""
        return float(self.tokens / sum(row[0] for row in self.fixed_tokens.values()))

    def fixed_to_none(self, depth: int) -> float:
        """Tokens of a fixed depth to those without speculation."""
        rows = self.fixed_tokens.values()
        return float(sum(row[depth] for row in rows) / sum(row[0] for row in rows))

    @property
    def to_best_fixed(self) -> float:
        """Tokens to those of the best fixed depth of each batch size, none included."""
        return float(self.tokens / sum(row.max() for row in self.fixed_tokens.values()))


class Costs:
    """A machine's times as arrays over rows."""

    def __init__(self, profile: Profile, most_rows: int) -> None:
        self.profile = profile
        self.target_s = np.array([0.0, *map(profile.target_s, range(1, most_rows + 1))])

    def steps_s(self, rows: Ints, batch: "Batch", depth: int) -> Floats:
        """Seconds of steps with these rows of decoding, prompts left out."""
        fixed_s = self.profile.drafting_s(batch.size, depth)
        fixed_s += self.profile.kv_token_s * batch.kv_tokens
        times: Floats = self.target_s[rows] + fixed_s
        return times


class Batch(NamedTuple):
    """What decodes in a step, besides its rates."""

    size: int
    kv_tokens: int


class Slots:
    """The requests being served, one for each slot."""

    def __init__(self, part: Part, seed: str) -> None:
        self._random = random.Random(seed)
        self._kinds = [part.kind_of(slot) for slot in range(part.slots)]
        self.rates = np.zeros((part.slots, DEEPEST))
        self.requests = [RequestAcceptance(ENDLESS) for _ in range(part.slots)]
        self.prompting: set[int] = set()
        self._phase = [0] * part.slots
        self._phase_left = np.zeros(part.slots)
        self.answer_left = np.full(part.slots, ENDLESS)
        self.changes = 0  # of rates or requests
        for slot in range(part.slots):
            self._start(slot)
            if self._kinds[slot].answer_tokens:  # somewhere within its answer
                self.answer_left[slot] = self._random.randint(1, self._kinds[slot].answer_tokens)
        self._is_static = all(len(k.phases) == 1 and not k.answer_tokens for k in self._kinds)

    def prompt_tokens(self) -> int:
        return sum(self._kinds[slot].prompt_tokens for slot in self.prompting)

    def advance(self, slots: list[int], emitted: NDArray[np.int64]) -> list[bool]:
        """Move on by the tokens of a step; return which requests continue."""
        for slot in self.prompting:
            self._start(slot)
        self.prompting = set()
        if self._is_static:
            return [True] * len(slots)
        self._phase_left[slots] -= emitted
        self.answer_left[slots] -= emitted
        for slot in slots:
            if self.answer_left[slot] <= 0:
                self.prompting.add(slot)
            if self.answer_left[slot] <= DEEPEST:
                self.changes += 1  # of what is left to draft
            elif self._phase_left[slot] <= 0:
                self._enter(slot, (self._phase[slot] + 1) % len(self._kinds[slot].phases))
            self.requests[slot].most = max(int(self.answer_left[slot]) - 1, 0)
        return [self.answer_left[slot] > 0 for slot in slots]

    def _start(self, slot: int) -> None:
        kind = self._kinds[slot]
        self.requests[slot] = RequestAcceptance(ENDLESS)
        if kind.answer_tokens:
            self.answer_left[slot] = kind.answer_tokens
            self.requests[slot].most = kind.answer_tokens - 1
        self._enter(slot, self._random.randrange(len(kind.phases)))

    def _enter(self, slot: int, place: int) -> None:
        phase = self._kinds[slot].phases[place]
        self._phase[slot], self.changes = place, self.changes + 1
        self.rates[slot] = phase.rates
        tokens = phase.tokens
        self._phase_left[slot] = (
            tokens if tokens == np.inf else self._random.expovariate(1 / tokens)
        )


class Outlook:
    """What every choice would emit in the present state, by expectation."""

    def __init__(self, rates: Floats, left: Ints, batch: Batch, costs: Costs) -> None:
        """Take the tokens that are left of each answer: the last one is never a draft's."""
        within = DEPTHS[1:] < left[:, None]
        self.survival: Floats = np.asarray(np.cumprod(rates, axis=1) * within, dtype=np.float64)
        zeros = np.zeros((batch.size, 1))
        self._emitted = np.hstack([zeros, np.cumsum(self.survival, axis=1)])
        self._size = batch.size
        rows = batch.size * (1 + DEPTHS)
        fixed_s = [costs.steps_s(rows[k], batch, k) for k in range(DEEPEST + 1)]
        self.fixed_rates = (batch.size + self._emitted.sum(axis=0)) / np.array(fixed_s)
        self.best_rate = max(self._best_rate(k, batch, costs) for k in range(DEEPEST + 1))

    def tokens(self, depths: NDArray[np.int64]) -> float:
        """Expect the tokens of a step that verifies these positions of each request."""
        return float(self._size + self._emitted[np.arange(self._size), depths].sum())

    def _best_rate(self, depth: int, batch: Batch, costs: Costs) -> float:
        chances = np.sort(self.survival[:, :depth], axis=None)[::-1]
        tokens = batch.size + np.concatenate([[0.0], np.cumsum(chances)])
        seconds = costs.steps_s(batch.size + np.arange(len(tokens)), batch, depth)
        return float((tokens / seconds).max())


def serve(policy: Chooser, traffic: Traffic, costs: Costs, seed: int) -> Served:
    """Serve a load."""
    served, noise = Served(), random.Random(f"noise {traffic.name} {seed}")
    late: deque[Feedback] = deque()
    state = _State()
    for number, part in enumerate(traffic.parts):
        slots = Slots(part, f"{traffic.name} {number} {seed}")
        draw = np.random.default_rng([seed, number, part.slots])
        for _ in range(part.steps):
            feedback = _step(policy, slots, traffic, costs, draw, served, state)
            if feedback is None:
                continue
            late.append(feedback._replace(seconds=feedback.seconds * _noise(noise)))
            if len(late) > costs.profile.late_steps:
                policy.observe(late.popleft())
    return served


@dataclass(slots=True)
class _State:
    """Between two steps."""

    missed: int = 0  # steps without a draft
    key: tuple[int, int, Batch] | None = None
    outlook: Outlook | None = None


def _step(
    policy: Chooser,
    slots: Slots,
    traffic: Traffic,
    costs: Costs,
    draw: np.random.Generator,
    served: Served,
    state: _State,
) -> Feedback | None:
    """Run a step; return what it measured, without noise, or None if nothing decoded."""
    decoding = [slot for slot in range(len(slots.requests)) if slot not in slots.prompting]
    size, prompt = len(decoding), slots.prompt_tokens()
    drafting_prompt_s = costs.profile.draft_row_s * prompt
    if not size:
        slots.advance([], np.zeros(0, dtype=np.int64))
        return None
    batch = Batch(size, traffic.kv_per_request * size)
    rates = slots.rates[decoding]
    key = id(slots), slots.changes, batch
    if state.outlook is None or state.key != key:
        left = slots.answer_left[decoding]
        state.key, state.outlook = key, Outlook(rates, left, batch, costs)
    outlook = state.outlook
    requests = tuple(slots.requests[slot] for slot in decoding)
    if isinstance(policy, VerifyBudget):
        policy.see(outlook.survival)
    decision = policy.decide(size, batch.kv_tokens, requests)
    steps = decision.num_steps
    depths = np.array(decision.verified or (steps,) * size)
    rows = size + int(depths.sum())
    seconds = float(costs.steps_s(np.array(rows), batch, steps))
    tokens = outlook.tokens(depths)
    lost_s = drafting_prompt_s
    if steps and state.missed:
        lost_s += costs.profile.catching_up_s(size, state.missed)
    _count(served, outlook, batch, seconds + lost_s, tokens)
    seconds += lost_s + float(costs.target_s[rows + prompt] - costs.target_s[rows])
    served.step_s.append(seconds)
    state.missed = 0 if steps else state.missed + 1
    lengths = np.cumprod(draw.random((size, DEEPEST)) < rates, axis=1).sum(axis=1)
    accepted = np.minimum(lengths, depths)
    continuing = slots.advance(decoding, accepted + 1)
    kept = [place for place, continues in enumerate(continuing) if continues]
    return Feedback(
        decision,
        size,
        batch.kv_tokens,
        tuple(accepted[kept].tolist()),
        seconds,
        is_alone=not prompt,
        verified=tuple(depths[kept].tolist()) if decision.verified else (),
        requests=tuple(requests[place] for place in kept),
        rows=rows,
    )


def _count(served: Served, outlook: Outlook, batch: Batch, seconds: float, tokens: float) -> None:
    served.seconds += seconds
    served.tokens += tokens
    served.best_tokens += outlook.best_rate * seconds
    row = served.fixed_tokens.setdefault(batch.size, np.zeros(DEEPEST + 1))
    row += outlook.fixed_rates * seconds


def _noise(draw: random.Random) -> float:
    noise = draw.lognormvariate(0.0, TIME_NOISE)
    return noise * SPIKE if draw.random() < SPIKE_CHANCE else noise
