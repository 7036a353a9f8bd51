"""Captures what was planned, within the budget: at start, or at a pair's first use."""

import logging
import sys
from dataclasses import dataclass, field

import torch
from tqdm import tqdm

from specdecode_engine.depth.decision import DepthPolicy
from specdecode_engine.graph_plan.budget import Budget, Ruling, Verdict, rule
from specdecode_engine.graph_plan.costs import Cost
from specdecode_engine.graph_plan.plan import GraphPlan, GraphSpace, Pair
from specdecode_engine.graph_plan.report import TierReport
from specdecode_engine.graphs.recorder import Recorder
from specdecode_engine.graphs.state import Tier

log = logging.getLogger(__name__)

_FREE = Cost()


@dataclass(slots=True)
class _Taken:
    """What capturing one depth took so far; owned by the library."""

    batch_sizes: list[int] = field(default_factory=list)
    passes: int = 0
    cost: Cost = _FREE


class Library:
    """Tiers by pair.

    Args:
        space: what stays as it is whatever the table.
        plan: every pair that can be reached at start.
        refused: pairs that are never captured; the recorder's buffers are not sized for them.
    """

    def __init__(
        self,
        space: GraphSpace,
        plan: GraphPlan,
        refused: dict[Pair, Ruling],
        budget: Budget,
        recorder: Recorder,
    ) -> None:
        self.plan = plan
        self._space = space
        self.tiers: dict[Pair, Tier] = {}
        self._refused = refused
        self._budget = budget
        self._recorder = recorder
        self._rulings: dict[Pair, Ruling] = {}
        self._taken: dict[int, _Taken] = {pair.num_steps: _Taken() for pair in sorted(plan.pairs)}

    @property
    def shared_bytes(self) -> int:
        """Bytes of inputs and outputs."""
        return self._recorder.shared_bytes

    def capture_all(self, progress: bool) -> None:
        """Capture every pair that the budget lets in, the largest first.

        After each the rest is decided anew, with what the passes really took.
        """
        total = len(self.plan.pairs)
        with tqdm(
            total=total, desc="capturing", unit="pair", file=sys.stderr, disable=not progress
        ) as bar:
            while (pair := self._next_pair()) is not None:
                self._capture(pair)
                bar.update()

    def replan(self, depth: DepthPolicy) -> None:
        """Follow the policy to another table: what it newly reaches is captured at first use.

        What was captured stays. Buffers are as large as the first table needed them.
        """
        plan = self._space.plan(depth)
        new = {pair: passes for pair, passes in plan.pairs.items() if pair not in self.plan.pairs}
        self.plan = GraphPlan(plan.sizes, {**self.plan.pairs, **new})
        for pair, passes in new.items():
            self._taken.setdefault(pair.num_steps, _Taken())
            if not all(map(self._recorder.holds, passes)):
                reason = f"{pair} is new in the table; it runs without a graph until a restart"
                self._refused[pair] = Ruling(pair, Verdict.REFUSED, reason)
        self._rule()
        for pair in new:
            if pair not in self._refused and self._rulings[pair].verdict is Verdict.NOW:
                reason = f"{pair} is new in the table; it is captured when it is first used"
                self._rulings[pair] = Ruling(pair, Verdict.LAZY, reason)

    def capture_if_due(self, pair: Pair) -> Tier | None:
        """Capture a pair whose first use this is; None if there is nothing to capture."""
        ruling = self._rulings.get(pair)
        if pair in self.tiers or pair in self._refused or ruling is None:
            return None
        if ruling.verdict is Verdict.REFUSED:
            return None
        log.info("capturing %s at its first use", pair)
        return self._capture(pair)

    def verdicts(self, verdict: Verdict) -> tuple[str, ...]:
        """Say why pairs are lazy or refused; those that were captured meanwhile are left out."""
        rulings = sorted((self._rulings | self._refused).values(), key=lambda one: one.pair)
        return tuple(
            one.reason for one in rulings if one.verdict is verdict and one.pair not in self.tiers
        )

    def reports(self) -> tuple[TierReport, ...]:
        """Say for every depth what was captured."""
        return tuple(
            TierReport(
                num_steps,
                tuple(sorted(taken.batch_sizes)),
                taken.passes,
                taken.cost.seconds,
                taken.cost.num_bytes,
            )
            for num_steps, taken in self._taken.items()
        )

    def _next_pair(self) -> Pair | None:
        rulings = self._rule()
        due = (one.pair for one in rulings if one.verdict is Verdict.NOW)
        return next((pair for pair in due if pair not in self.tiers), None)

    def _rule(self) -> tuple[Ruling, ...]:
        """Decide anew on every pair that is not out of the question."""
        rulings = rule(
            {pair: passes for pair, passes in self.plan.pairs.items() if pair not in self._refused},
            self._recorder.cost_of,
            lambda _: 0,
            self._budget,
            self._spent() + Cost(self.shared_bytes),
            self._recorder.runners.keys(),
        )
        self._rulings = {ruling.pair: ruling for ruling in rulings}
        return rulings

    def _spent(self) -> Cost:
        return sum((taken.cost for taken in self._taken.values()), _FREE)

    def _capture(self, pair: Pair) -> Tier | None:
        passes = self.plan.pairs[pair]
        taken, before = self._taken[pair.num_steps], len(self._recorder.runners)
        try:
            taken.cost += self._recorder.record(passes)
        except torch.OutOfMemoryError as error:
            reason = f"{pair} runs without a graph: capturing it ran out of memory ({error})"
            self._refused[pair] = Ruling(pair, Verdict.REFUSED, reason)
            log.warning("%s", reason)
            return None
        taken.passes += len(self._recorder.runners) - before
        taken.batch_sizes.append(pair.batch_size)
        runners = self._recorder.runners
        tier = Tier(pair.batch_size, {shape: runners[shape] for shape in passes})
        self.tiers[pair] = tier
        return tier
