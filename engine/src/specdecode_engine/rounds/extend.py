"""An extend round: compute prompt chunks, and sample the first token where a prompt ends."""

import torch
from torch import Tensor

from specdecode_engine.forward.kv_view import PagedView
from specdecode_engine.rounds.logprobs import gather_logprobs
from specdecode_engine.rounds.parts import Parts
from specdecode_engine.slots import Span
from specdecode_engine.step import Chunk, Emission


def run_extend_round(parts: Parts, chunks: tuple[Chunk, ...]) -> list[Emission]:
    """Compute the chunks' KV in target and draft; emit a token for each that ends its prompt."""
    spans = [Span(_slot(chunk), chunk.start, chunk.end) for chunk in chunks]
    rows = parts.table.span_rows(spans)
    ids = parts.table.tokens_at(rows.slots, rows.positions)
    view = PagedView(parts.pool, rows.kv_rows, rows.layout)
    hidden = parts.target.forward(ids, rows.positions, view, parts.capture.layers)
    if parts.drafter is not None:
        parts.drafter.follow(spans, parts.features_of(hidden))
    for span in spans:
        parts.table.set_computed(span.slot, span.end)
    last_rows = torch.tensor([span.end - span.start for span in spans]).cumsum(0) - 1
    ending = [index for index, chunk in enumerate(chunks) if chunk.is_last]
    if not ending:
        return []
    last_hidden = hidden.last[last_rows[ending].to(hidden.last.device)]
    return _sample(parts, [chunks[index] for index in ending], last_hidden)


def _sample(parts: Parts, chunks: list[Chunk], last_hidden: Tensor) -> list[Emission]:
    logits = parts.target.logits(last_hidden)[:, None]
    slots = [_slot(chunk) for chunk in chunks]
    positions = torch.tensor([[chunk.end] for chunk in chunks], device=logits.device)
    tokens = parts.sampler.choose(logits, slots, positions)
    tops = [chunk.sequence.request.sampling.logprobs for chunk in chunks]
    logprobs = gather_logprobs(logits, tokens, tops)
    emissions = []
    columns = zip(chunks, slots, tokens[:, 0].tolist(), logprobs, strict=True)
    for chunk, slot, token, records in columns:
        parts.table.put_token(slot, chunk.end, token)
        emissions.append(Emission(chunk.sequence, (token,), 0, 0, records))
    return emissions


def _slot(chunk: Chunk) -> int:
    assert chunk.sequence.slot is not None
    return chunk.sequence.slot
