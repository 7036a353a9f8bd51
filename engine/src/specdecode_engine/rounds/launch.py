"""Launches a step: an extend and a decode round, in one pass where that can be."""

from collections.abc import Mapping
from dataclasses import dataclass

from specdecode_engine.draft_shape import DraftShape
from specdecode_engine.rounds.decode import launch_decode_round
from specdecode_engine.rounds.extend import launch_extend_round
from specdecode_engine.rounds.launched import Launched
from specdecode_engine.rounds.mixed import launch_mixed_round
from specdecode_engine.rounds.parts import Parts
from specdecode_engine.rounds.timing import Share, Stopwatch
from specdecode_engine.step import Plan


@dataclass(frozen=True, slots=True)
class Launcher:
    """What launches rounds; `shapes` tells how a round of so many steps drafts."""

    shapes: Mapping[int, DraftShape]
    stopwatch: Stopwatch

    def launch(self, parts: Parts, plan: Plan, table: str) -> tuple[Launched, ...]:
        """Launch what a plan asks for, under the speculation table of that hash."""
        if plan.decision is not None:
            # Before the round is timed: what was put off is captured here.
            parts.states.activate(plan.decision.num_steps, len(plan.decoding))
        if not plan.chunks:
            return self._launch_decode(parts, plan, table)
        if self._goes_together(parts, plan):
            return self._launch_mixed(parts, plan, table)
        extend = self._launch_extend(parts, plan, table)
        return extend + self._launch_decode(parts, plan, table)

    def _goes_together(self, parts: Parts, plan: Plan) -> bool:
        """Whether something decodes, and neither in captured passes nor in trees."""
        if plan.decision is None or parts.states.runs_captured:
            return False
        return self.shapes[plan.decision.num_steps].topk == 1

    def _launch_mixed(self, parts: Parts, plan: Plan, table: str) -> tuple[Launched, ...]:
        """Launch both in one pass; its time is shared by rows."""
        assert plan.decision is not None
        shape = self.shapes[plan.decision.num_steps]
        timing = self.stopwatch.start()
        extend, decode = launch_mixed_round(parts, plan.chunks, plan.decoding, shape)
        timing.stop()
        prompt_tokens, nodes = plan.prompt_tokens, len(plan.decoding) * shape.num_tokens
        part = prompt_tokens / (prompt_tokens + nodes)
        ours, theirs = Share(timing, part), Share(timing, 1 - part)
        return (
            Launched(extend, ours, table, prompt_tokens=prompt_tokens),
            Launched(decode, theirs, table, plan.decision, plan.kv_tokens, is_alone=False),
        )

    def _launch_extend(self, parts: Parts, plan: Plan, table: str) -> tuple[Launched, ...]:
        timing = self.stopwatch.start()
        pending = launch_extend_round(parts, plan.chunks)
        timing.stop()
        return (Launched(pending, timing, table, prompt_tokens=plan.prompt_tokens),)

    def _launch_decode(self, parts: Parts, plan: Plan, table: str) -> tuple[Launched, ...]:
        """Launch a decode round, if any, at the depth that was decided for it."""
        if plan.decision is None:
            return ()
        timing = self.stopwatch.start()
        shape = self.shapes[plan.decision.num_steps]
        pending = launch_decode_round(parts, plan.decoding, shape)
        timing.stop()
        return (Launched(pending, timing, table, plan.decision, plan.kv_tokens),)
