"""Prefill: the rows of prompt chunks, and the first token where a prompt ends."""

from dataclasses import dataclass

import torch
from torch import Tensor

from specdecode_engine.batch.request_table import Rows, Span
from specdecode_engine.batch.scheduler_output import PrefillChunk
from specdecode_engine.steps.in_flight import InFlightStep
from specdecode_engine.steps.logprobs import select_logprobs
from specdecode_engine.steps.model_context import ModelContext
from specdecode_engine.steps.prompt_logprobs import score_prompts


@dataclass(frozen=True, slots=True)
class PrefillRows:
    """The rows of prompt chunks, concatenated, and which of them sample a first token."""

    chunks: tuple[PrefillChunk, ...]
    spans: tuple[Span, ...]
    rows: Rows
    ids: Tensor  # [rows] i64
    last_rows: Tensor  # [chunks that end a prompt] i64


def lay_out_prefill(context: ModelContext, chunks: tuple[PrefillChunk, ...]) -> PrefillRows:
    """Collect the inputs of a forward over the chunks."""
    spans = tuple(Span(_slot(chunk), chunk.start, chunk.end) for chunk in chunks)
    rows = context.table.span_rows(spans)
    ids = context.table.tokens_at(rows.slots, rows.positions)
    ends = torch.tensor([chunk.end - chunk.start for chunk in chunks]).cumsum(0)
    last = ends[[chunk.is_last for chunk in chunks]] - 1
    return PrefillRows(chunks, spans, rows, ids, last.to(ids.device))


def finish_prefill(
    context: ModelContext,
    prefill: PrefillRows,
    hidden: Tensor,
    aux_hidden_states: Tensor | None,
    logits: Tensor,
    step: InFlightStep,
) -> None:
    """Continue after the target's forward: the draft's KV, prompt logprobs, first tokens.

    Args:
        hidden: [rows of all chunks, hidden], after the final norm.
        aux_hidden_states: of the same rows, what the drafter reads; None if it reads none.
        logits: [chunks that end a prompt, vocab].
        step: receives what the host will read.
    """
    if context.drafter is not None:
        context.drafter.prefill(prefill.spans, aux_hidden_states)
    for span in prefill.spans:
        context.table.set_computed(span.slot, span.end)
    step.send_prompt_logprobs(score_prompts(context, prefill.chunks, prefill.rows, hidden))
    ending = tuple(chunk for chunk in prefill.chunks if chunk.is_last)
    if ending:
        _sample_first_tokens(context, ending, logits[:, None], step)


def _sample_first_tokens(
    context: ModelContext, chunks: tuple[PrefillChunk, ...], logits: Tensor, step: InFlightStep
) -> None:
    slots = [_slot(chunk) for chunk in chunks]
    positions = torch.tensor([[chunk.end] for chunk in chunks], device=logits.device)
    tokens = context.sampler.sample(logits, slots, positions)
    slot_rows = torch.tensor(slots, device=logits.device)
    context.table.put_tokens(slot_rows, positions[:, 0], tokens[:, 0])
    none_accepted = torch.zeros_like(slot_rows)
    context.sampler.commit(slots, tokens, none_accepted + 1)
    tops = [chunk.sequence.request.sampling.logprobs for chunk in chunks]
    logprobs = select_logprobs(logits, tokens, tops)
    sequences = tuple(chunk.sequence for chunk in chunks)
    step.send_tokens(sequences, tokens, none_accepted, 0, logprobs)


def _slot(chunk: PrefillChunk) -> int:
    assert chunk.sequence.slot is not None
    return chunk.sequence.slot
