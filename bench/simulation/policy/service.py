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

from bench.simulation.policy.chooser import Chooser
from bench.simulation.policy.loads import DEEPEST
from bench.simulation.policy.profiles import Profile
from bench.simulation.policy.rivals.verify_budget import VerifyBudget
from bench.simulation.policy.traffic import Part, Traffic
from bench.simulation.policy.world import noise_factor
from specdecode_engine.adaptive.goodput import GoodputPolicy
from specdecode_engine.adaptive.policy import Decision, Feedback

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
DEPTHS = np.arange(DEEPEST + 1)
ENDLESS = 1 << 30  # tokens


@dataclass(slots=True)
class Served:
    """What a run has come to; written by `Service` only."""

    seconds: float = 0.0
    tokens: float = 0.0
    best_tokens: float = 0.0  # of rows per request by a policy that knows rates and costs
    batch_tokens: float = 0.0  # of one depth for the batch by such a policy, chosen for each step
    fixed_tokens: dict[int, Floats] = field(default_factory=dict)  # by depth, by batch size

    @property
    def of_best(self) -> float:
        """Tokens to those of the best choices of rows for each request."""
        return self.tokens / self.best_tokens

    @property
    def batch_of_best(self) -> float:
        """The same for the best depth of the batch: what no choice for a whole batch exceeds."""
        return self.batch_tokens / self.best_tokens

    @property
    def to_none(self) -> float:
        """Tokens to those without speculation."""
        return float(self.tokens / sum(row[0] for row in self.fixed_tokens.values()))

    @property
    def to_best_fixed(self) -> float:
        """Tokens to those of the best fixed depth of each batch size, none included."""
        return float(self.tokens / sum(row.max() for row in self.fixed_tokens.values()))

    def fixed_to_none(self, depth: int) -> float:
        """Tokens of a fixed depth to those without speculation."""
        rows = self.fixed_tokens.values()
        return float(sum(row[depth] for row in rows) / sum(row[0] for row in rows))


class Batch(NamedTuple):
    """What decodes in a step, besides its rates."""

    size: int
    kv_tokens: int


class Costs:
    """A machine's times as arrays over rows."""

    def __init__(self, profile: Profile, most_rows: int) -> None:
        self.profile = profile
        self.target_s = np.array([0.0, *map(profile.target_s, range(1, most_rows + 1))])

    def steps_s(self, rows: Ints, batch: Batch, depth: int) -> Floats:
        """Seconds of steps with these rows of decoding, prompts left out."""
        fixed_s = self.profile.drafting_s(batch.size, depth)
        fixed_s += self.profile.kv_token_s * batch.kv_tokens
        times: Floats = self.target_s[rows] + fixed_s
        return times


class Slots:
    """The requests being served, one for each slot."""

    def __init__(self, part: Part, seed: str) -> None:
        self._random = random.Random(seed)
        self.kinds = [part.kind_of(slot) for slot in range(part.slots)]
        self.rates = np.zeros((part.slots, DEEPEST))
        self.prompting: set[int] = set()
        self.answer_left = np.full(part.slots, ENDLESS)
        self.changes = 0  # of rates or requests
        self._phase = [0] * part.slots
        self._phase_left = np.zeros(part.slots)
        self._is_static = all(len(k.phases) == 1 and not k.answer_tokens for k in self.kinds)
        for slot, kind in enumerate(self.kinds):
            self._start(slot)
            if kind.answer_tokens:  # somewhere within its answer
                self.answer_left[slot] = self._random.randint(1, kind.answer_tokens)

    def decoding(self) -> list[int]:
        return [slot for slot in range(len(self.kinds)) if slot not in self.prompting]

    def prompt_tokens(self) -> int:
        return sum(self.kinds[slot].prompt_tokens for slot in self.prompting)

    def advance(self, slots: list[int], emitted: Ints) -> None:
        """Move on by the tokens of a step."""
        for slot in self.prompting:
            self._start(slot)
        self.prompting = set()
        if self._is_static:
            return
        self._phase_left[slots] -= emitted
        self.answer_left[slots] -= emitted
        for slot in slots:
            if self.answer_left[slot] <= 0:
                self.prompting.add(slot)
            if self.answer_left[slot] <= DEEPEST:
                self.changes += 1  # of what is left to draft
            elif self._phase_left[slot] <= 0:
                self._enter(slot, (self._phase[slot] + 1) % len(self.kinds[slot].phases))

    def _start(self, slot: int) -> None:
        kind = self.kinds[slot]
        if kind.answer_tokens:
            self.answer_left[slot] = kind.answer_tokens
        self._enter(slot, self._random.randrange(len(kind.phases)))

    def _enter(self, slot: int, place: int) -> None:
        phase = self.kinds[slot].phases[place]
        self._phase[slot], self.changes = place, self.changes + 1
        self.rates[slot] = phase.rates
        is_endless = phase.tokens == np.inf
        left = phase.tokens if is_endless else self._random.expovariate(1 / phase.tokens)
        self._phase_left[slot] = left


class Outlook:
    """What every choice would emit in the present state, by expectation."""

    def __init__(self, rates: Floats, left: Ints, batch: Batch, costs: Costs) -> None:
        """Take the tokens that are left of each answer: the last one is never a draft's."""
        within = DEPTHS[1:] < left[:, None]
        self.survival: Floats = np.asarray(np.cumprod(rates, axis=1) * within, dtype=np.float64)
        self._size = batch.size
        zeros = np.zeros((batch.size, 1))
        self._emitted = np.hstack([zeros, np.cumsum(self.survival, axis=1)])
        rows = batch.size * (1 + DEPTHS)
        fixed_s = [costs.steps_s(rows[k], batch, k) for k in range(DEEPEST + 1)]
        self.fixed_rates = (batch.size + self._emitted.sum(axis=0)) / np.array(fixed_s)
        self.best_rate = max(self._best_rate(k, batch, costs) for k in range(DEEPEST + 1))

    def tokens(self, depths: Ints) -> float:
        """Expect the tokens of a step that verifies these positions of each request."""
        return float(self._size + self._emitted[np.arange(self._size), depths].sum())

    def _best_rate(self, depth: int, batch: Batch, costs: Costs) -> float:
        chances = np.sort(self.survival[:, :depth], axis=None)[::-1]
        tokens = batch.size + np.concatenate([[0.0], np.cumsum(chances)])
        seconds = costs.steps_s(batch.size + np.arange(len(tokens)), batch, depth)
        return float((tokens / seconds).max())


class Service:
    """Serves a load with a policy; `served` grows."""

    def __init__(self, policy: Chooser, traffic: Traffic, costs: Costs, seed: int) -> None:
        self.served = Served()
        self._policy, self._traffic, self._costs = policy, traffic, costs
        self._noise = random.Random(f"noise {traffic.name} {seed}")
        self._late: deque[Feedback] = deque()
        self._missed = 0  # steps without a draft
        self._known: tuple[tuple[int, int, Batch], Outlook] | None = None
        for number, part in enumerate(traffic.parts):
            slots = Slots(part, f"{traffic.name} {number} {seed}")
            draw = np.random.default_rng([seed, number, part.slots])
            for _ in range(part.steps):
                self._step(slots, draw)

    def _step(self, slots: Slots, draw: np.random.Generator) -> None:
        decoding, prompt = slots.decoding(), slots.prompt_tokens()
        if not decoding:
            slots.advance([], np.zeros(0, dtype=np.int64))
            return
        size, profile = len(decoding), self._costs.profile
        batch = Batch(size, self._traffic.kv_per_request * size)
        outlook = self._outlook(slots, decoding, batch)
        decision = self._decide(batch, prompt)
        steps = decision.num_steps
        depths = np.full(size, steps)
        if isinstance(self._policy, VerifyBudget):
            self._policy.see(outlook.survival)
            depths = self._policy.divide(*batch)
        rows = size + int(depths.sum())
        seconds = float(self._costs.steps_s(np.array(rows), batch, steps))
        lost_s = profile.draft_row_s * prompt
        if steps and self._missed:
            lost_s += profile.catching_up_s(size, self._missed)
        self._missed = 0 if steps else self._missed + 1
        self._count(outlook, batch, seconds + lost_s, outlook.tokens(depths))
        seconds += lost_s + float(self._costs.target_s[rows + prompt] - self._costs.target_s[rows])
        lengths = np.cumprod(draw.random((size, DEEPEST)) < slots.rates[decoding], axis=1).sum(1)
        accepted, left = np.minimum(lengths, depths), slots.answer_left[decoding]
        slots.advance(decoding, accepted + 1)
        ended = [slots.kinds[slot].answer_tokens for slot in decoding if slot in slots.prompting]
        self._late.append(
            Feedback(
                decision,
                size,
                batch.kv_tokens,
                tuple(accepted[left > steps + 1].tolist()),
                seconds * noise_factor(self._noise),
                is_alone=not prompt,
                ended=tuple(ended),
            )
        )
        if len(self._late) > profile.late_steps:
            self._policy.observe(self._late.popleft())

    def _decide(self, batch: Batch, prompt_tokens: int) -> Decision:
        if not isinstance(self._policy, GoodputPolicy):
            return self._policy.decide(*batch)
        target_s, rows = self._costs.target_s, batch.size
        return self._policy.decide(*batch, float(target_s[rows + prompt_tokens] - target_s[rows]))

    def _outlook(self, slots: Slots, decoding: list[int], batch: Batch) -> Outlook:
        key = id(slots), slots.changes, batch
        if self._known is None or self._known[0] != key:
            left = slots.answer_left[decoding]
            self._known = key, Outlook(slots.rates[decoding], left, batch, self._costs)
        return self._known[1]

    def _count(self, outlook: Outlook, batch: Batch, seconds: float, tokens: float) -> None:
        served = self.served
        served.seconds += seconds
        served.tokens += tokens
        served.best_tokens += outlook.best_rate * seconds
        served.batch_tokens += float(outlook.fixed_rates.max()) * seconds
        row = served.fixed_tokens.setdefault(batch.size, np.zeros(DEEPEST + 1))
        row += outlook.fixed_rates * seconds
