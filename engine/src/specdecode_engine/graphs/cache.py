"""The CUDA graphs of an engine: looked up per decode step, captured at start and in idle steps."""

from collections.abc import Mapping
from dataclasses import replace

from specdecode_engine.adaptive.policy import AdaptivePolicy
from specdecode_engine.batch.decode_inputs import DecodeInputs
from specdecode_engine.batch.shapes import ForwardKind, ForwardShape
from specdecode_engine.graphs.capturer import GraphCapturer, GraphSet
from specdecode_engine.graphs.plan import CAPTURING, Eager, GraphPlan, GraphReport, GraphSpace
from specdecode_engine.model.forward import DecodeFunction, ForwardOutputs
from specdecode_engine.process.start_progress import ShowProgress, progress_bar

NO_PLAN = GraphPlan((), {})


class GraphCache:
    """Runs the forwards of decode steps: with CUDA graphs if there are any, else eagerly.

    A step runs on graphs as a whole or not at all; steps without are counted by reason.

    Args:
        functions: the eager forwards, by kind.
        space: what can be planned for; None captures nothing.
        plan: what the policy reaches at start.
        mode: "off", "static" or "cuda", for the report.
        failure: why there is no capturer although one was wanted.
    """

    def __init__(
        self,
        functions: Mapping[ForwardKind, DecodeFunction],
        space: GraphSpace | None = None,
        plan: GraphPlan = NO_PLAN,
        capturer: GraphCapturer | None = None,
        mode: str = "off",
        failure: str = "",
    ) -> None:
        self._functions = functions
        self._space = space
        self._plan = plan
        self._capturer = capturer
        self._mode = mode
        self._failure = failure
        # By num_steps, tokens verified, and whether nothing is kept for the draft; ascending sizes.
        self._sets: dict[tuple[int, int, bool], tuple[GraphSet, ...]] = {}
        self._active: GraphSet | None = None
        self._graph_steps = 0
        self._eager_steps: dict[str, int] = {}
        self._latest: tuple[int, int] | None = None  # num_steps and batch size of the newest step

    def capture_all(self, progress: ShowProgress | None = None) -> None:
        """Capture what the budget allows, before the first step."""
        capturer = self._capturer
        if capturer is None:
            return
        total = capturer.pending_pairs
        with progress_bar(progress, CAPTURING, total, "pair") as add:
            while (before := capturer.pending_pairs) and capturer.has_start_time():
                self.capture_next()
                add(before - capturer.pending_pairs)

    def capture_next(self) -> bool:
        """Capture one more forward, while no step is in flight; return whether any is left."""
        if self._capturer is None:
            return False
        if (captured := self._capturer.capture_next()) is not None:
            key, graph_set = captured
            kind = key.num_steps, key.verify_tokens, key.is_plain
            sets = (*self._sets.get(kind, ()), graph_set)
            self._sets[kind] = tuple(sorted(sets, key=lambda one: one.batch_size))
        return self._capturer.pending_pairs > 0

    def replan(self, policy: AdaptivePolicy, *, with_plain: bool = False) -> None:
        """Plan for the policy's table; new pairs are captured in idle steps.

        Args:
            with_plain: plan steps that keep nothing for the draft too, at every batch size.
        """
        if self._capturer is not None and self._space is not None:
            self._plan = self._space.plan(policy, with_plain=with_plain)
            self._capturer.replan(self._plan)

    def activate(
        self, num_steps: int, batch_size: int, *, is_plain: bool = False, verify_tokens: int = 0
    ) -> GraphSet | None:
        """Choose the graphs for a decode step, before it is timed; None runs it eagerly.

        Args:
            is_plain: nothing is kept for the draft. Until that is captured, the graphs of steps
                without draft tokens do, whose hidden states nobody reads then.
            verify_tokens: see `DraftShape`.
        """
        self._latest = num_steps, batch_size
        kind = num_steps, verify_tokens, is_plain
        self._active = self._find(*kind, batch_size) if self._sets else None
        if self._active is not None:
            self._graph_steps += 1
        else:
            reason = self._eager_reason(*kind, batch_size)
            self._eager_steps[reason] = self._eager_steps.get(reason, 0) + 1
        return self._active

    def _find(
        self, num_steps: int, verify_tokens: int, is_plain: bool, batch_size: int
    ) -> GraphSet | None:
        for one in self._sets.get((num_steps, verify_tokens, is_plain), ()):
            if one.batch_size >= batch_size:
                return one
        return self._find(num_steps, verify_tokens, False, batch_size) if is_plain else None

    @property
    def uses_graphs(self) -> bool:
        """Whether the activated step runs on graphs."""
        return self._active is not None

    @property
    def latest_step(self) -> str:
        """The newest decode step, and the graph that it ran on; for any thread."""
        if self._latest is None:
            return "no decode step has run"
        num_steps, batch_size = self._latest
        active = self._active
        graph = (
            "run eagerly" if active is None else f"on the CUDA graph of size {active.batch_size}"
        )
        return f"the newest decode step has num_steps {num_steps}, batch size {batch_size}, {graph}"

    def run(self, kind: ForwardKind, inputs: DecodeInputs) -> ForwardOutputs:
        """Run a forward of the activated step."""
        active = self._active
        if active is None:
            return self._functions[kind](inputs).widened()
        seen = 0 if inputs.mask is None else inputs.mask.shape[2]
        if kind is ForwardKind.DRAFT_STEP and inputs.rows > 1:
            seen = inputs.first + inputs.rows
        size, verified = active.batch_size, inputs.verify_tokens
        shape = ForwardShape(kind, size, inputs.rows, inputs.first, seen, verified)
        if kind is ForwardKind.PLAIN and shape not in active.graphs:
            shape = replace(shape, kind=ForwardKind.VERIFY)
        return active.graphs[shape].run(inputs)

    def padded_batch(self, batch_size: int) -> int:
        """Return how many requests the forwards of the activated step compute."""
        return batch_size if self._active is None else self._active.batch_size

    def rows_of(self, kind: ForwardKind, wanted: int) -> int:
        """Return how many rows a forward computes where `wanted` are missing: as many or more."""
        return wanted if self._active is None else self._active.rows_of(kind, wanted)

    def reset_counts(self) -> None:
        """Reset the step counters: the steps so far served no request."""
        self._graph_steps = 0
        self._eager_steps = {}

    def report(self) -> GraphReport:
        capturer, eager_steps = self._capturer, dict(self._eager_steps)
        if capturer is None:
            return GraphReport(self._mode, failure=self._failure, eager_steps=eager_steps)
        decisions = capturer.decisions()
        return GraphReport(
            mode=self._mode,
            sets=capturer.reports(),
            shared_bytes=capturer.shared_bytes,
            pending=tuple(str(one) for one in decisions if one.is_pending),
            refused=tuple(str(one) for one in decisions if not one.is_pending),
            failure=capturer.failure,
            graph_steps=self._graph_steps,
            eager_steps=eager_steps,
        )

    def _eager_reason(
        self, num_steps: int, verify_tokens: int, is_plain: bool, batch_size: int
    ) -> Eager:
        if self._capturer is None or not self._plan.sizes:
            return Eager.OFF
        step = num_steps, batch_size
        key = self._plan.key_of(*step, is_plain=is_plain, verify_tokens=verify_tokens)
        if key is None:
            return Eager.TOO_LARGE
        if key not in self._plan.pairs:
            if is_plain:
                return self._eager_reason(num_steps, verify_tokens, False, batch_size)
            return Eager.UNPLANNED
        return Eager.PENDING if self._capturer.is_pending(key) else Eager.REFUSED
