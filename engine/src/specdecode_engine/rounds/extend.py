"""An extend round: compute prompt chunks, and sample the first token where a prompt ends."""

from collections.abc import Sequence as Items
from dataclasses import dataclass

import torch
from torch import Tensor

from specdecode_engine.forward.kv_view import PagedView
from specdecode_engine.forward.llama import Hidden
from specdecode_engine.rounds.logprobs import select_logprobs
from specdecode_engine.rounds.parts import Parts
from specdecode_engine.rounds.pending import PendingRound, send_prompts_to_host, send_to_host
from specdecode_engine.rounds.prompt_logprobs import ScoredPrompt, score_prompts
from specdecode_engine.slots import Rows, Span
from specdecode_engine.step import Chunk


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """The rows of prompt chunks, one behind the other, and which of them sample a first token."""

    chunks: tuple[Chunk, ...]
    spans: tuple[Span, ...]
    rows: Rows
    ids: Tensor  # [rows] i64
    last_rows: Tensor  # [chunks that end a prompt] i64

    @property
    def ending(self) -> list[Chunk]:
        """Chunks that end a prompt."""
        return [chunk for chunk in self.chunks if chunk.is_last]


def launch_extend_round(parts: Parts, chunks: tuple[Chunk, ...]) -> PendingRound | None:
    """Compute the chunks' KV in target and draft; sample where a prompt ends.

    Returns:
        None where no prompt ends and none is to be scored.
    """
    laid_out = lay_out_chunks(parts, chunks)
    rows = laid_out.rows
    view = PagedView(parts.pool, rows.kv_rows, rows.layout)
    hidden = parts.target.forward(laid_out.ids, rows.positions, view, parts.capture.layers)
    logits = None
    if len(laid_out.last_rows):
        logits = parts.target.logits(hidden.last[laid_out.last_rows])
    return take_up_chunks(parts, laid_out, hidden, logits)


def lay_out_chunks(parts: Parts, chunks: tuple[Chunk, ...]) -> ChunkRows:
    """Lay out what a pass over the chunks needs."""
    spans = tuple(Span(_slot(chunk), chunk.start, chunk.end) for chunk in chunks)
    rows = parts.table.span_rows(spans)
    ids = parts.table.tokens_at(rows.slots, rows.positions)
    ends = torch.tensor([chunk.end - chunk.start for chunk in chunks]).cumsum(0)
    last = ends[[chunk.is_last for chunk in chunks]] - 1
    return ChunkRows(chunks, spans, rows, ids, last.to(ids.device))


def take_up_chunks(
    parts: Parts, laid_out: ChunkRows, hidden: Hidden, logits: Tensor | None
) -> PendingRound | None:
    """Go on from the target's pass: the draft's KV, scores of prompts, first tokens.

    Args:
        hidden: of the chunks' rows.
        logits: [chunks that end a prompt, vocab]; None where there are none.
    """
    if parts.drafter is not None:
        parts.drafter.follow(laid_out.spans, parts.features_of(hidden))
    for span in laid_out.spans:
        parts.table.set_computed(span.slot, span.end)
    scored = score_prompts(parts, laid_out.chunks, laid_out.rows, hidden.last)
    if logits is None:
        return send_prompts_to_host(scored, hidden.last.device) if scored else None
    return _sample(parts, laid_out.ending, logits[:, None], scored)


def _sample(
    parts: Parts, chunks: Items[Chunk], logits: Tensor, scored: tuple[ScoredPrompt, ...]
) -> PendingRound:
    slots = [_slot(chunk) for chunk in chunks]
    positions = torch.tensor([[chunk.end] for chunk in chunks], device=logits.device)
    tokens = parts.sampler.choose(logits, slots, positions)
    slot_rows = torch.tensor(slots, device=logits.device)
    parts.table.put_tokens(slot_rows, positions[:, 0], tokens[:, 0])
    none_accepted = torch.zeros_like(slot_rows)
    parts.sampler.commit(slots, tokens, none_accepted + 1)
    tops = [chunk.sequence.request.sampling.logprobs for chunk in chunks]
    logprobs = select_logprobs(logits, tokens, tops)
    sequences = tuple(chunk.sequence for chunk in chunks)
    return send_to_host(sequences, tokens, none_accepted, 0, logprobs, scored)


def _slot(chunk: Chunk) -> int:
    assert chunk.sequence.slot is not None
    return chunk.sequence.slot
