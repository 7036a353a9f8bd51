"""Prefill: a forward of the target over prompt chunks, and the first token where a prompt ends."""

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional

from specdecode_engine.batch.request_table import Rows, StagedSpans
from specdecode_engine.batch.sequence import PrefillChunk, SchedulerOutput, Sequence
from specdecode_engine.model.forward import ForwardInputs, ForwardOutputs
from specdecode_engine.model.kv.delta_states import DeltaStates
from specdecode_engine.model.kv.kv_cache import KVCache
from specdecode_engine.model.kv.kv_views import PagedView
from specdecode_engine.model.layers.layers import widened
from specdecode_engine.model.routed_experts import forward_target
from specdecode_engine.model.target.config import NO_HIDDEN_STATES, AuxHiddenStates
from specdecode_engine.model.target.language_model import NeededRows
from specdecode_engine.sampling.sampler import SamplingBatch
from specdecode_engine.speculate.drafter import Drafter
from specdecode_engine.steps.block_rows import BlockRows, computed_by_blocks
from specdecode_engine.steps.in_flight import InFlightStep
from specdecode_engine.steps.logprobs import LogprobRequest, score_prompts
from specdecode_engine.steps.model_context import ModelContext
from specdecode_engine.steps.routed_experts import routed_prompts
from specdecode_kernels import AttentionMetadata, CausalBounds

# Rows that the last layer leaves out at least: fewer hardly take longer than reading its weights.
MIN_LEFT_OUT = 32


@dataclass(frozen=True, slots=True, eq=False)
class EndingPrompts:
    """Prompts whose last row is computed, in which the first output token is sampled."""

    sequences: tuple[Sequence, ...]
    rows: Tensor  # [E] i64, last row of each among the rows of all chunks
    spans: StagedSpans  # these rows, a span for each
    sampling: SamplingBatch
    logprobs: LogprobRequest | None

    @classmethod
    def of(cls, context: ModelContext, chunks: tuple[PrefillChunk, ...]) -> "EndingPrompts | None":
        """Stage the prompts that end; None where none does."""
        ends = list(accumulate([chunk.end - chunk.start for chunk in chunks]))
        rows = [end - 1 for chunk, end in zip(chunks, ends, strict=True) if chunk.is_last]
        if not rows:
            return None
        ending = [chunk for chunk in chunks if chunk.is_last]
        sequences = tuple([chunk.sequence for chunk in ending])
        spans = [(_req_index(chunk), chunk.end - 1, chunk.end) for chunk in ending]
        return cls(
            sequences,
            context.staging.put(rows),
            context.table.stage_spans(spans),
            context.sampler.stage([req_index for req_index, _, _ in spans]),
            LogprobRequest.stage(sequences, context.staging),
        )


@dataclass(frozen=True, slots=True, eq=False)
class StagedPrefill:
    """Prompt chunks, with what the device has to know of them."""

    chunks: tuple[PrefillChunk, ...]
    spans: StagedSpans
    ending: EndingPrompts | None
    aux_spec: AuxHiddenStates  # what the draft reads of the target
    blocks: BlockRows | None

    @classmethod
    def of(cls, context: ModelContext, plan: SchedulerOutput) -> "StagedPrefill":
        """Stage the chunks of a plan, of which there is at least one."""
        chunks = plan.chunks
        is_fed = plan.prompts_feed_draft or (bool(plan.decoding) and plan.feeds_draft)
        spans = [(_req_index(chunk), chunk.start, chunk.end) for chunk in chunks]
        return cls(
            chunks,
            context.table.stage_spans(spans),
            EndingPrompts.of(context, chunks),
            context.aux_spec if is_fed else NO_HIDDEN_STATES,
            BlockRows.stage(context, chunks),
        )

    @property
    def scores_rows(self) -> bool:
        """Whether the logits of other rows than the last one of a prompt are read."""
        return any(chunk.sequence.unscored_rows for chunk in self.chunks)


def prefill(
    context: ModelContext,
    prompts: StagedPrefill,
    nodes: ForwardInputs | None,
    step: InFlightStep,
) -> ForwardOutputs:
    """Run the target over the chunks and any decode rows after them, and finish the chunks.

    Args:
        nodes: the decode rows: chains, of any lengths.
        step: receives what the host will read of the chunks.

    Returns:
        Outputs of the decode rows.
    """
    spans, ending = prompts.spans.spans, prompts.ending
    rows = context.table.span_rows(prompts.spans)
    last = None if ending is None else context.table.span_rows(ending.spans)
    split, count = len(rows.positions), 0 if ending is None else len(ending.sequences)
    hidden, logits, aux = _run_target(context, prompts, rows, last, nodes)
    if context.drafter is not None:
        _prefill_draft(context.drafter, prompts, None if aux is None else aux[:split])
    for req_index, _, end in spans:
        context.table.set_computed(req_index, end)
    if context.states is not None:
        for chunk in prompts.chunks:
            if chunk.cached_state is not None:
                context.states.save(_req_index(chunk), chunk.cached_state)
    if hidden is not None and prompts.scores_rows:
        step.send_prompt_logprobs(score_prompts(context, prompts.chunks, rows, hidden))
    if ending is not None and last is not None:
        _sample_first_tokens(context, ending, last, logits[:count, None], step)
    return ForwardOutputs(logits[count:], None if aux is None else aux[split:])


def _prefill_draft(drafter: Drafter, prompts: StagedPrefill, aux: Tensor | None) -> None:
    """Pass the chunks and their aux hidden states [rows, width] to the draft.

    An unfit draft computes nothing for requests that are not to probe it, and one that rests
    nothing for chunks that wait.
    """
    spans, chunks = prompts.spans.spans, prompts.chunks
    skipped = [_req_index(chunk) for chunk in chunks if chunk.sequence.skips_draft]
    if skipped:
        drafter.skip(skipped)
    passes = [not (chunk.waits or chunk.sequence.skips_draft) for chunk in chunks]
    if all(passes):
        drafter.prefill(spans, aux)
    elif any(passes):
        counts = [end - start for _, start, end in spans]
        hidden = (None,) * len(spans) if aux is None else aux.split_with_sizes(counts)
        for span, own, is_passed in zip(spans, hidden, passes, strict=True):
            if is_passed:
                drafter.prefill([span], own)


def _run_target(
    context: ModelContext,
    prompts: StagedPrefill,
    rows: Rows,
    last: Rows | None,
    nodes: ForwardInputs | None,
) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """Run the target over the rows of the chunks and the nodes after them.

    Args:
        last: the last row of each prompt that ends.

    Returns:
        Hidden states of all rows, None if only logits are read; the logits of `last` and the nodes;
        and the aux hidden states of all rows.
    """
    ids = context.table.tokens_at(rows.req_indices, rows.positions)
    positions = context.rotary.rows(rows.req_indices, rows.positions)
    if nodes is not None:
        ids = torch.cat([ids, nodes.ids])
        positions = torch.cat([positions, nodes.positions])
    req_indices = None if context.adapters is None else _req_indices(rows, nodes)
    wanted = torch.arange(len(rows.positions), len(ids), device=ids.device)
    if prompts.ending is not None:
        wanted = torch.cat([prompts.ending.rows, wanted])
    view = _view(context.pool, rows, nodes, context.states)
    assert view is not None
    arguments = ids, positions, view, prompts.aux_spec
    hidden = None
    with (
        computed_by_blocks(context, prompts.blocks, len(ids)),
        context.applied(req_indices) as target,
    ):
        is_short = len(ids) - len(wanted) < MIN_LEFT_OUT
        # The last layer of needed rows alone would take the adapters of other rows.
        if is_short or target is not context.target or _reads_all(context, prompts):
            hidden, aux = forward_target(target, context.routed, view.slot_mapping, *arguments)
            read = hidden[wanted]
        else:
            needed = NeededRows(wanted, _view(context.pool, last, nodes))
            read, aux = target.forward(*arguments, needed)
    if not len(wanted):
        return hidden, read, aux
    with context.applied(None if req_indices is None else req_indices[wanted]) as target:
        return hidden, widened(target.logits(read)), aux


def _req_indices(rows: Rows, nodes: ForwardInputs | None) -> Tensor:
    """Return the requests of the rows of chunks, and of nodes after them."""
    if nodes is None:
        return rows.req_indices
    assert nodes.req_indices is not None
    return torch.cat([rows.req_indices, nodes.req_indices])


def _reads_all(context: ModelContext, prompts: StagedPrefill) -> bool:
    """Whether what the target's last layer gives is read of every row."""
    if prompts.scores_rows or context.routed is not None:
        return True
    last = context.target.config.num_hidden_layers - 1
    return prompts.aux_spec.final or last in prompts.aux_spec.layers


def _view(
    pool: KVCache,
    rows: Rows | None,
    nodes: ForwardInputs | None,
    states: DeltaStates | None = None,
) -> PagedView | None:
    """How rows, and nodes after them, see keys and values; None where there is neither.

    Args:
        states: which the rows and nodes change.
    """
    if rows is None:
        if nodes is None:
            return None
        assert nodes.slot_mapping is not None
        return PagedView(pool, nodes.slot_mapping, nodes.layout)
    slots, req_indices, layout = rows.slot_mapping, rows.req_indices, rows.layout
    if nodes is not None:
        assert nodes.slot_mapping is not None
        assert nodes.req_indices is not None
        slots = torch.cat([slots, nodes.slot_mapping])
        req_indices = torch.cat([req_indices, nodes.req_indices])
        layout = _concatenate(layout, nodes.layout, split=len(rows.positions))
    num_chunks = len(rows.layout.qo_lens)
    delta = None if states is None else states.view(req_indices, layout, num_chunks)
    return PagedView(pool, slots, layout, delta=delta)


def _concatenate(one: AttentionMetadata, other: AttentionMetadata, split: int) -> AttentionMetadata:
    """Return the metadata of a forward over the requests of `one`, then those of `other`.

    Args:
        one: with `cu_seqlens_q`, of `split` rows.
        other: with equally many rows per request, or with `cu_seqlens_q`.
    """
    lens = (*one.qo_lens, *other.qo_lens)
    tables = one.page_table, other.page_table
    width = max(table.shape[1] for table in tables)
    padded = [functional.pad(table, (0, width - table.shape[1])) for table in tables]
    assert one.cu_seqlens_q is not None
    if other.cu_seqlens_q is not None:
        ends = other.cu_seqlens_q[1:] + split
    else:
        count, device = other.qo_lens[0], one.kv_lens.device
        ends = torch.arange(split + count, sum(lens) + 1, count, device=device)
    bounds = None
    if (first := one.causal_bounds) is not None and (second := other.causal_bounds) is not None:
        rows = max(first.inexact_rows, second.inexact_rows)
        bounds = CausalBounds(first.kv_lens + second.kv_lens, rows)
    return AttentionMetadata(
        page_table=torch.cat(padded),
        page_size=one.page_size,
        qo_lens=lens,
        kv_lens=torch.cat([one.kv_lens, other.kv_lens]),
        max_kv_len=max(one.max_kv_len, other.max_kv_len),
        cu_seqlens_q=torch.cat([one.cu_seqlens_q, ends]),
        causal_bounds=bounds,
    )


def _sample_first_tokens(
    context: ModelContext, ending: EndingPrompts, last: Rows, logits: Tensor, step: InFlightStep
) -> None:
    """Sample from logits [E, 1, vocab] of the last rows of the prompts that end."""
    positions = last.positions + 1
    sampled = context.sampler.sample(logits, ending.sampling, positions[:, None])
    tokens = sampled.clamp(min=0) if ending.sampling.is_restricted else sampled
    context.table.put_tokens(last.req_indices, positions, tokens[:, 0])
    none_accepted = torch.zeros_like(positions)
    context.sampler.commit(ending.sampling, tokens, none_accepted)
    logprobs = None if ending.logprobs is None else ending.logprobs.select(logits, tokens)
    routed = routed_prompts(context, ending.sequences)
    step.send_tokens(ending.sequences, sampled, none_accepted, 0, logprobs, routed)


def _req_index(chunk: PrefillChunk) -> int:
    assert chunk.sequence.req_index is not None
    return chunk.sequence.req_index
