"""Prints what policy goodput decides and knows after random feedback: python policy_trace.py SEED.

The first line names the files of the modules that images compile; floats are printed exactly.
"""

import math
import random
import sys
from collections.abc import Iterator

from specdecode_engine.adaptive import (
    acceptance,
    cost,
    draft_rest,
    exploration,
    goodput,
    step_limit,
)
from specdecode_engine.adaptive.cost import CostModel, CostPoint, CostShape
from specdecode_engine.adaptive.draft_rest import DraftRest
from specdecode_engine.adaptive.goodput import GoodputPolicy
from specdecode_engine.adaptive.policy import Decision, Feedback
from specdecode_engine.adaptive.table import BatchRange, RangeTable

MODULES = (acceptance, cost, draft_rest, exploration, goodput, step_limit)
STEPS = 1500
CANDIDATES = (0, 1, 2, 3, 5, 7)


class Machine:
    """Steps of random duration, and drafts whose acceptance changes."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.row_s = draw.choice((2e-5, 3e-4, 2e-3))
        self.rate, self.batch_size = draw.random(), 1

    def seconds(self, batch_size: int, num_steps: int, kv_tokens: int) -> float:
        rows_s = self.row_s * batch_size * (num_steps + 1)
        return 6e-3 + rows_s + 3e-4 * num_steps + 1e-8 * kv_tokens

    def points(self) -> Iterator[CostPoint]:
        for size in (1, 4, 16, 64):
            for steps, kv_tokens in ((0, 8), (1, 8), (3, 8), (7, 8), (3, 9000)):
                noise = self.draw.uniform(0.8, 1.2)
                seconds = noise * self.seconds(size, steps, kv_tokens)
                yield CostPoint(size, steps, kv_tokens, seconds)
        yield CostPoint(8, 5, 64, self.seconds(8, 3, 64), verify_tokens=3)

    def vary(self) -> None:
        if self.draw.random() < 0.01:
            self.rate = self.draw.choice((0.02, 0.3, 0.7, 0.97))
        if self.draw.random() < 0.02:
            self.batch_size = self.draw.choice((1, 2, 3, 8, 16, 40))

    def feedback(self, decision: Decision, kv_tokens: int) -> Feedback:
        draw, size, num_steps = self.draw, self.batch_size, decision.num_steps
        seconds = draw.lognormvariate(0, 0.05) * self.seconds(size, num_steps, kv_tokens)
        ended = tuple(draw.randint(1, 200) for _ in range(size) if draw.random() < 0.05)
        lengths = [self._accepted(num_steps) for _ in range(size - len(ended))]
        partial: tuple[tuple[int, int], ...] = ()
        if num_steps > 1 and draw.random() < 0.05:
            partial = tuple((min(length, 1), 1) for length in lengths[:2])
            lengths = lengths[2:]
        return Feedback(
            decision,
            size,
            kv_tokens,
            tuple(lengths),
            seconds,
            draw.random() < 0.95,
            partial,
            not partial,
            draw.choice((0.0, 1.02 * seconds)),
            ended,
        )

    def _accepted(self, num_steps: int) -> int:
        length = 0
        while length < num_steps and self.draw.random() < self.rate:
            length += 1
        return length


def tables(draw: random.Random) -> tuple[RangeTable, ...]:
    """One range, two of which one verifies less, and a limit of a step's time."""
    ranges = (BatchRange(1, CANDIDATES), BatchRange(8, (0, 2, 5), verify_tokens=3))
    limited = RangeTable([BatchRange(1, CANDIDATES)], max_step_s=draw.uniform(7e-3, 2e-2))
    return RangeTable([BatchRange(1, CANDIDATES)]), RangeTable(ranges), limited


def main(seed: int) -> None:
    print(*[module.__file__ for module in MODULES])
    draw = random.Random(seed)
    machine, choices = Machine(draw), tables(draw)
    points = tuple(machine.points()) if draw.random() < 0.7 else ()
    shape = CostShape(drafts_blocks=draw.random() < 0.3)
    whole = CostModel([one for one in points if one.verify_tokens is None], shape)
    policy = GoodputPolicy(choices[seed % 3], whole, 3, points=points)
    rest = DraftRest(kept=draw.choice((16.0, 64.0, math.inf)), computes_late=True)
    for number in range(STEPS):
        machine.vary()
        if draw.random() < 0.003:
            policy.reload(draw.choice(choices))
        if draw.random() < 0.001:
            policy.forget_draft()
        kv_tokens = machine.batch_size * (8 + number)
        prefill_s = draw.choice((0.0, 0.0, 0.0, 1e-3))
        decision = rest.decide(policy, machine.batch_size, kv_tokens, prefill_s)
        room_s = policy.prefill_room_s(machine.batch_size, kv_tokens)
        policy.observe(machine.feedback(decision, kv_tokens))
        print(decision, rest.keeps, room_s, policy.states() if number % 20 == 0 else "")


if __name__ == "__main__":
    main(int(sys.argv[1]))
