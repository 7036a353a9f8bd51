"""Prefill: a forward of the target over prompt chunks, and the first token where a prompt ends."""

from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional

from specdecode_engine.batch.request_table import Rows
from specdecode_engine.batch.sequence import PrefillChunk
from specdecode_engine.model.forward import ForwardInputs, ForwardOutputs
from specdecode_engine.model.kv_cache import PagedView
from specdecode_engine.steps.in_flight import InFlightStep
from specdecode_engine.steps.logprobs import score_prompts, select_logprobs
from specdecode_engine.steps.model_context import ModelContext
from specdecode_kernels import AttentionMetadata


def prefill(
    context: ModelContext,
    chunks: tuple[PrefillChunk, ...],
    nodes: ForwardInputs | None,
    step: InFlightStep,
) -> ForwardOutputs:
    """Run the target over the chunks and any decode rows after them, and finish the chunks.

    Args:
        nodes: the decode rows: chains.
        step: receives what the host will read of the chunks.

    Returns:
        Outputs of the decode rows.
    """
    spans = [(_req_index(chunk), chunk.start, chunk.end) for chunk in chunks]
    rows = context.table.span_rows(spans)
    hidden, aux = _run_target(context, rows, nodes)
    split, last_rows = len(rows.positions), _last_rows(chunks).to(rows.positions.device)
    wanted = torch.cat([hidden[last_rows], hidden[split:]])
    logits = context.target.logits(wanted) if len(wanted) else wanted
    if context.drafter is not None:
        context.drafter.prefill(spans, None if aux is None else aux[:split])
    for req_index, _, end in spans:
        context.table.set_computed(req_index, end)
    if any(chunk.sequence.unscored_rows for chunk in chunks):
        step.send_prompt_logprobs(score_prompts(context, chunks, rows, hidden))
    ending = len(last_rows)
    if ending:
        _sample_first_tokens(context, chunks, logits[:ending, None], step)
    return ForwardOutputs(logits[ending:], None if aux is None else aux[split:])


def _last_rows(chunks: tuple[PrefillChunk, ...]) -> Tensor:
    """Rows of the chunks that end a prompt, in which its first output token is sampled."""
    ends = torch.tensor([chunk.end - chunk.start for chunk in chunks]).cumsum(0)
    return ends[[chunk.is_last for chunk in chunks]] - 1


def _run_target(
    context: ModelContext, rows: Rows, nodes: ForwardInputs | None
) -> tuple[Tensor, Tensor | None]:
    """Return the hidden states and the aux hidden states of all rows."""
    ids = context.table.tokens_at(rows.req_indices, rows.positions)
    positions, slot_mapping, metadata = rows.positions, rows.slot_mapping, rows.layout
    if nodes is not None:
        assert nodes.slot_mapping is not None
        ids = torch.cat([ids, nodes.ids])
        positions = torch.cat([positions, nodes.positions])
        slot_mapping = torch.cat([slot_mapping, nodes.slot_mapping])
        metadata = _concatenate(metadata, nodes.layout)
    view = PagedView(context.pool, slot_mapping, metadata)
    return context.target.forward(ids, positions, view, context.aux_spec)


def _concatenate(one: AttentionMetadata, other: AttentionMetadata) -> AttentionMetadata:
    """Return the metadata of a forward over the requests of `one`, then those of `other`."""
    lens = (*one.qo_lens, *other.qo_lens)
    tables = one.page_table, other.page_table
    width = max(table.shape[1] for table in tables)
    padded = [functional.pad(table, (0, width - table.shape[1])) for table in tables]
    return AttentionMetadata(
        page_table=torch.cat(padded),
        page_size=one.page_size,
        qo_lens=lens,
        kv_lens=torch.cat([one.kv_lens, other.kv_lens]),
        max_kv_len=max(one.max_kv_len, other.max_kv_len),
        cu_seqlens_q=torch.tensor([0, *accumulate(lens)], device=one.kv_lens.device),
    )


def _sample_first_tokens(
    context: ModelContext, chunks: tuple[PrefillChunk, ...], logits: Tensor, step: InFlightStep
) -> None:
    """Sample from logits [prompts that end, 1, vocab] of the chunks that end a prompt."""
    ending = [chunk for chunk in chunks if chunk.is_last]
    sequences = tuple(chunk.sequence for chunk in ending)
    req_indices = [_req_index(chunk) for chunk in ending]
    positions = torch.tensor([[chunk.end] for chunk in ending], device=logits.device)
    tokens = context.sampler.sample(logits, req_indices, positions)
    request_rows = torch.tensor(req_indices, device=logits.device)
    context.table.put_tokens(request_rows, positions[:, 0], tokens[:, 0])
    none_accepted = torch.zeros_like(request_rows)
    context.sampler.commit(req_indices, tokens, none_accepted + 1)
    logprobs = None
    if any(sequence.request.sampling.logprobs is not None for sequence in sequences):
        logprobs = select_logprobs(logits, tokens, sequences)
    step.send_tokens(sequences, tokens, none_accepted, 0, logprobs)


def _req_index(chunk: PrefillChunk) -> int:
    assert chunk.sequence.req_index is not None
    return chunk.sequence.req_index
