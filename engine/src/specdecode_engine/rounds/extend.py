"""An extend round: compute prompt chunks, and sample the first token where a prompt ends."""

import torch
from torch import Tensor

from specdecode_engine.forward.kv_view import PagedView
from specdecode_engine.rounds.logprobs import select_logprobs
from specdecode_engine.rounds.parts import Parts
from specdecode_engine.rounds.pending import PendingRound, send_prompts_to_host, send_to_host
from specdecode_engine.rounds.prompt_logprobs import ScoredPrompt, score_prompts
from specdecode_engine.slots import Span
from specdecode_engine.step import Chunk


def launch_extend_round(parts: Parts, chunks: tuple[Chunk, ...]) -> PendingRound | None:
    """Compute the chunks' KV in target and draft; sample where a prompt ends.

    Returns:
        None where no prompt ends and none is to be scored.
    """
    spans = [Span(_slot(chunk), chunk.start, chunk.end) for chunk in chunks]
    rows = parts.table.span_rows(spans)
    ids = parts.table.tokens_at(rows.slots, rows.positions)
    view = PagedView(parts.pool, rows.kv_rows, rows.layout)
    hidden = parts.target.forward(ids, rows.positions, view, parts.capture.layers)
    if parts.drafter is not None:
        parts.drafter.follow(spans, parts.features_of(hidden))
    for span in spans:
        parts.table.set_computed(span.slot, span.end)
    scored = score_prompts(parts, chunks, rows, hidden.last)
    last_rows = torch.tensor([span.end - span.start for span in spans]).cumsum(0) - 1
    ending = [index for index, chunk in enumerate(chunks) if chunk.is_last]
    if not ending:
        return send_prompts_to_host(scored, hidden.last.device) if scored else None
    last_hidden = hidden.last[last_rows[ending].to(hidden.last.device)]
    return _sample(parts, [chunks[index] for index in ending], last_hidden, scored)


def _sample(
    parts: Parts, chunks: list[Chunk], last_hidden: Tensor, scored: tuple[ScoredPrompt, ...]
) -> PendingRound:
    logits = parts.target.logits(last_hidden)[:, None]
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
    return send_to_host(sequences, tokens, none_accepted, 0, logprobs, False, scored)


def _slot(chunk: Chunk) -> int:
    assert chunk.sequence.slot is not None
    return chunk.sequence.slot
