"""Launches a step: one forward of the target over prompt chunks and decode rows.

Either part may be empty. The weights are read once for both parts. A row's result does not depend
on the other rows of a forward, so the outputs equal those of two forwards. CUDA graphs and trees
run decode rows only; the two parts then have a forward each.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional

from specdecode_engine.batch.scheduler_output import SchedulerOutput
from specdecode_engine.batch.shapes import DraftShape, ForwardKind
from specdecode_engine.model.forward import ForwardInputs, ForwardOutputs
from specdecode_engine.model.kv_views import PagedView
from specdecode_engine.model.llama import Hidden
from specdecode_engine.steps.decode import DecodeRows, draft_rows, finish_decode
from specdecode_engine.steps.in_flight import InFlightStep
from specdecode_engine.steps.model_context import ModelContext
from specdecode_engine.steps.prefill import PrefillRows, finish_prefill, lay_out_prefill
from specdecode_engine.steps.timing import Share, Stopwatch, Timing
from specdecode_kernels import AttentionMetadata

_PLAIN = DraftShape.chain(0)


@dataclass(frozen=True, slots=True)
class Launcher:
    """Launches steps; `shapes` maps a number of draft steps to the shape of the draft."""

    shapes: Mapping[int, DraftShape]
    stopwatch: Stopwatch

    def launch(
        self, context: ModelContext, plan: SchedulerOutput, table: str
    ) -> tuple[InFlightStep, ...]:
        """Launch what the scheduler planned, under the speculation table with hash `table`."""
        if plan.is_empty:
            return ()
        if plan.decision is not None:
            context.graphs.activate(plan.decision.num_steps, len(plan.decoding))
            if plan.chunks and not self._can_mix(context, plan):
                prefill = self._launch(context, plan._replace(decoding=(), decision=None), table)
                return prefill + self._launch(context, plan._replace(chunks=()), table)
        return self._launch(context, plan, table)

    def _can_mix(self, context: ModelContext, plan: SchedulerOutput) -> bool:
        """Whether decode rows can share a forward: they form chains and run in no CUDA graph."""
        return not context.graphs.uses_graphs and self._shape(plan).topk == 1

    def _shape(self, plan: SchedulerOutput) -> DraftShape:
        return _PLAIN if plan.decision is None else self.shapes[plan.decision.num_steps]

    def _launch(
        self, context: ModelContext, plan: SchedulerOutput, table: str
    ) -> tuple[InFlightStep, ...]:
        """Launch one forward; two parts share its time by rows."""
        shape = self._shape(plan)
        timing = self.stopwatch.start()
        steps: tuple[InFlightStep, ...]
        if not plan.chunks:
            steps = (InFlightStep(timing, table, plan.decision, plan.kv_tokens),)
        elif plan.decision is None:
            steps = (InFlightStep(timing, table, prompt_tokens=plan.prompt_tokens),)
        else:
            steps = _shared_steps(plan, shape, timing, table)
        launch_forward(context, plan, shape, steps)
        timing.stop()
        return steps


def _shared_steps(
    plan: SchedulerOutput, shape: DraftShape, timing: Timing, table: str
) -> tuple[InFlightStep, ...]:
    prompt_tokens, nodes = plan.prompt_tokens, len(plan.decoding) * shape.num_tokens
    part = prompt_tokens / (prompt_tokens + nodes)
    return (
        InFlightStep(Share(timing, part), table, prompt_tokens=prompt_tokens),
        InFlightStep(Share(timing, 1 - part), table, plan.decision, plan.kv_tokens, is_alone=False),
    )


def launch_forward(
    context: ModelContext,
    plan: SchedulerOutput,
    shape: DraftShape,
    steps: tuple[InFlightStep, ...],
) -> None:
    """Compute the plan's chunks and decode its sequences in one forward of the target.

    Args:
        shape: of the drafts.
        steps: receive what the host will read: of the chunks first, of the sequences last.
    """
    decode = draft_rows(context, plan.decoding, shape) if plan.decoding else None
    if plan.chunks:
        outputs = _prefill(context, lay_out_prefill(context, plan.chunks), decode, steps[0])
    elif decode is not None:
        outputs = context.graphs.run(ForwardKind.VERIFY, decode.nodes)
    if decode is not None:
        finish_decode(context, decode, outputs, steps[-1])


def _prefill(
    context: ModelContext, prefill: PrefillRows, decode: DecodeRows | None, step: InFlightStep
) -> ForwardOutputs:
    """Run the target over the chunks and any decode rows after them, and finish the chunks.

    Returns:
        Outputs of the decode rows.
    """
    split, ending = len(prefill.ids), len(prefill.last_rows)
    hidden = _run_target(context, prefill, None if decode is None else decode.nodes)
    of_chunks, of_nodes = _rows(hidden, slice(split)), _rows(hidden, slice(split, None))
    wanted = torch.cat([of_chunks.last[prefill.last_rows], of_nodes.last])
    logits = context.target.logits(wanted) if len(wanted) else wanted
    finish_prefill(context, prefill, of_chunks, logits[:ending], step)
    return ForwardOutputs(logits[ending:], context.aux_hidden_states(of_nodes))


def _run_target(context: ModelContext, prefill: PrefillRows, nodes: ForwardInputs | None) -> Hidden:
    ids, rows = prefill.ids, prefill.rows
    positions, slot_mapping, metadata = rows.positions, rows.slot_mapping, rows.layout
    if nodes is not None:
        assert nodes.slot_mapping is not None
        ids = torch.cat([ids, nodes.ids])
        positions = torch.cat([positions, nodes.positions])
        slot_mapping = torch.cat([slot_mapping, nodes.slot_mapping])
        metadata = concatenate(metadata, nodes.layout)
    view = PagedView(context.pool, slot_mapping, metadata)
    return context.target.forward(ids, positions, view, context.aux_spec.layers)


def concatenate(one: AttentionMetadata, other: AttentionMetadata) -> AttentionMetadata:
    """Return the metadata of a forward over the requests of `one`, then those of `other`."""
    lens = (*one.qo_lens, *other.qo_lens)
    tables = one.page_table, other.page_table
    width = max(table.shape[1] for table in tables)
    return AttentionMetadata(
        page_table=torch.cat([_widened(table, width) for table in tables]),
        page_size=one.page_size,
        qo_lens=lens,
        kv_lens=torch.cat([one.kv_lens, other.kv_lens]),
        max_kv_len=max(one.max_kv_len, other.max_kv_len),
        cu_seqlens_q=torch.tensor([0, *accumulate(lens)], device=one.kv_lens.device),
    )


def _widened(table: Tensor, width: int) -> Tensor:
    return functional.pad(table, (0, width - table.shape[1]))


def _rows(hidden: Hidden, rows: slice) -> Hidden:
    aux = hidden.aux_hidden_states
    return Hidden(hidden.last[rows], None if aux is None else aux[rows])
