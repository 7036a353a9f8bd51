"""Launches a step: one forward of the target over prompt chunks and decode rows.

Either part may be empty. The weights are read once for both parts. A row's result does not depend
on the other rows of a forward, so the outputs equal those of two forwards. CUDA graphs and trees
run decode rows only; the two parts then have a forward each.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from specdecode_engine.batch.proposals import Proposals
from specdecode_engine.batch.sequence import SchedulerOutput
from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.batch.verify_rows import VerifyRowsPolicy
from specdecode_engine.steps.decode import StagedDecode, decode
from specdecode_engine.steps.draft_sources import NOTHING_DRAFTED, StepDrafts, plan_drafts
from specdecode_engine.steps.in_flight import InFlightStep
from specdecode_engine.steps.model_context import ModelContext
from specdecode_engine.steps.prefill import StagedPrefill, prefill
from specdecode_engine.steps.timing import Stopwatch


@dataclass(frozen=True, slots=True)
class Launcher:
    """Launches steps; `shapes` maps a number of draft steps to the shape of the draft."""

    shapes: Mapping[int, DraftShape]
    stopwatch: Stopwatch

    def launch(
        self,
        context: ModelContext,
        plan: SchedulerOutput,
        table: str,
        choose_rows: VerifyRowsPolicy,
        in_flight: tuple[InFlightStep, ...] = (),
    ) -> tuple[InFlightStep, ...]:
        """Launch what the scheduler planned, under the speculation table with hash `table`.

        Args:
            in_flight: the step before, if it is not collected; a proposer waits for its tokens.
        """
        if plan.is_empty:
            return ()
        decision = plan.decision
        if decision is not None:
            shape = self.shapes[decision.num_steps].verifying(decision.verify_tokens)
            drafts = plan_drafts(context, plan, shape, choose_rows, in_flight)
            is_plain, num_steps = not plan.feeds_draft, drafts.shape.num_steps
            verified = drafts.shape.verify_tokens
            size = len(plan.decoding)
            context.graphs.activate(num_steps, size, is_plain=is_plain, verify_tokens=verified)
            if plan.chunks and not self._can_mix(context, drafts.shape):
                prompts = plan._replace(decoding=(), decision=None)
                decoding = plan._replace(chunks=())
                return (
                    *self._launch(context, prompts, table, NOTHING_DRAFTED),
                    *self._launch(context, decoding, table, drafts),
                )
            return self._launch(context, plan, table, drafts)
        return self._launch(context, plan, table, NOTHING_DRAFTED)

    def _can_mix(self, context: ModelContext, shape: DraftShape) -> bool:
        """Whether decode rows can share a forward: they form chains and run in no CUDA graph.

        Nor may the device decide how many rows requests have.
        """
        return not context.graphs.uses_graphs and shape.topk == 1 and not shape.verify_tokens

    def _launch(
        self,
        context: ModelContext,
        plan: SchedulerOutput,
        table: str,
        drafts: StepDrafts,
    ) -> tuple[InFlightStep, ...]:
        """Launch one forward; two parts share its time by rows."""
        timing, counts = self.stopwatch.start(), drafts.num_verify_rows
        prompt_tokens = plan.prompt_tokens if plan.chunks else 0
        share = prompt_tokens / (prompt_tokens + sum(counts)) if prompt_tokens else 0.0
        steps: tuple[InFlightStep, ...] = ()
        if plan.chunks:
            steps += (
                InFlightStep(
                    timing,
                    table,
                    share,
                    prompt_tokens=prompt_tokens,
                    prompt_context=plan.prompt_context,
                    decoding=len(plan.decoding),
                    num_steps=drafts.shape.num_steps,
                    feeds_draft=plan.prompts_feed_draft,
                ),
            )
        if plan.decision is not None:
            decision = plan.decision
            steps += (
                InFlightStep(
                    timing,
                    table,
                    1 - share,
                    decision,
                    plan.kv_tokens,
                    num_verify_rows=counts,
                    found=drafts.found,
                ),
            )
        proposals = drafts.found if drafts.is_verified else None
        launch_forward(context, plan, drafts.shape, steps, proposals)
        timing.stop()
        return steps


def launch_forward(
    context: ModelContext,
    plan: SchedulerOutput,
    shape: DraftShape,
    steps: tuple[InFlightStep, ...],
    proposals: Proposals | None = None,
) -> None:
    """Compute the plan's chunks and decode its sequences in one forward of the target.

    All that the device has to know of them is sent in one copy before the first launch.

    Args:
        shape: of the drafts.
        steps: receive what the host will read: of the chunks first, of the sequences last.
        proposals: drafts that were made on the host.
    """
    prompts = StagedPrefill.of(context, plan) if plan.chunks else None
    decoding = None
    if plan.decoding:
        decoding = StagedDecode.of(context, plan, shape, proposals, steps[-1].num_verify_rows)
    context.staging.send()
    if decoding is not None:
        decode(context, decoding, prompts, shape, steps)
    elif prompts is not None:
        prefill(context, prompts, None, steps[0])
