"""All runtime states: one per depth, the active one swapped by reference before a round begins."""

from collections.abc import Mapping

from specdecode_engine.depth.decision import DepthPolicy
from specdecode_engine.draft_shape import DraftShape
from specdecode_engine.forward.passes import PassFunction, PassInputs, PassOutputs
from specdecode_engine.graph_plan.budget import Verdict
from specdecode_engine.graph_plan.passes import PassKind, PassShape
from specdecode_engine.graph_plan.report import Eager, GraphReport
from specdecode_engine.graphs.library import Library
from specdecode_engine.graphs.runner import Runner
from specdecode_engine.graphs.state import RuntimeState, Tier


class RuntimeStates:
    """Runs the passes of decode rounds: captured ones where the active state has them.

    A round is captured as a whole or not at all; why not is counted.

    Args:
        functions: the passes as they stand, by kind.
        shapes: every shape that a round may draft in, by depth.
        library: where captured passes come from; None captures nothing.
        mode: "off", "static" or "cuda", for the report.
    """

    def __init__(
        self,
        functions: Mapping[PassKind, PassFunction],
        shapes: Mapping[int, DraftShape],
        library: Library | None = None,
        mode: str = "off",
    ) -> None:
        self._functions = functions
        self._library = library
        self._mode = mode
        self._states = {steps: RuntimeState(steps, shape) for steps, shape in shapes.items()}
        self._active: RuntimeState | None = None
        self._tier: Tier | None = None
        self._captured_rounds = 0
        self._eager_rounds: dict[str, int] = {}
        self._switches = 0

    def capture_all(self, progress: bool = False) -> None:
        """Capture what the budget lets in and build the states; before the first round."""
        if self._library is None:
            return
        self._library.capture_all(progress)
        for pair, tier in self._library.tiers.items():
            self._states[pair.num_steps] = self._states[pair.num_steps].with_tier(tier)

    def replan(self, depth: DepthPolicy) -> None:
        """Follow the policy to another table; nothing is captured before it is used."""
        if self._library is not None:
            self._library.replan(depth)

    def activate(self, num_steps: int, batch_size: int) -> RuntimeState:
        """Make the state of a depth the active one: the first thing that a decode round does.

        A pair that was put off is captured here, before the round is timed.
        """
        self._capture_if_due(num_steps, batch_size)
        state = self._states[num_steps]
        if self._active is not None:
            self._switches += state.num_steps != self._active.num_steps
        self._active = state
        self._tier = state.tier_of(batch_size)
        if self._tier is not None:
            self._captured_rounds += 1
        else:
            reason = self._reason(num_steps, batch_size)
            self._eager_rounds[reason] = self._eager_rounds.get(reason, 0) + 1
        return state

    @property
    def runs_captured(self) -> bool:
        """Whether the round that was activated for has captured passes."""
        return self._tier is not None

    def run(self, kind: PassKind, inputs: PassInputs) -> PassOutputs:
        """Run a pass of the round that was activated for."""
        if self._tier is None:
            return self._functions[kind](inputs)
        return self._runner(self._tier, kind, inputs).run(inputs)

    def catch_up_rows(self, wanted: int) -> int:
        """Return how many rows to catch up on where `wanted` are missing: as many or more."""
        return wanted if self._tier is None else self._tier.catch_up_rows(wanted)

    def forget_rounds(self) -> None:
        """Count rounds from here on: those so far served nobody."""
        self._captured_rounds = self._switches = 0
        self._eager_rounds = {}
        self._active = None

    def report(self) -> GraphReport:
        """Say what was captured and what ran without."""
        library = self._library
        rounds = (self._captured_rounds, dict(self._eager_rounds), self._switches)
        if library is None:
            return GraphReport(self._mode, (), 0, (), (), *rounds)
        lazy, refused = (library.verdicts(one) for one in (Verdict.LAZY, Verdict.REFUSED))
        return GraphReport(
            self._mode, library.reports(), library.shared_bytes, lazy, refused, *rounds
        )

    def _runner(self, tier: Tier, kind: PassKind, inputs: PassInputs) -> Runner:
        seen = 0 if inputs.mask is None else inputs.mask.shape[2]
        return tier.runners[PassShape(kind, tier.batch_size, inputs.rows, inputs.first, seen)]

    def _capture_if_due(self, num_steps: int, batch_size: int) -> None:
        if self._library is None:
            return
        pair = self._library.plan.pair_of(num_steps, batch_size)
        tier = None if pair is None else self._library.capture_if_due(pair)
        if tier is not None:
            self._states[num_steps] = self._states[num_steps].with_tier(tier)

    def _reason(self, num_steps: int, batch_size: int) -> Eager:
        if self._library is None or not self._library.plan.sizes:
            return Eager.OFF
        plan = self._library.plan
        pair = plan.pair_of(num_steps, batch_size)
        if pair is None:
            return Eager.TOO_LARGE
        return Eager.REFUSED if pair in plan.pairs else Eager.UNPLANNED
