"""EAGLE-3: a one-layer head drafts from the target's own features.

Source: Li et al., "EAGLE-3", 2025. Row i of the draft's KV consumes the pair (feature of position
i, token i + 1) and predicts token i + 2; its rotary position is i. So a sequence of L computed
tokens and a bonus token has exactly L draft rows, under the target's pages. After the last row the
head goes on from its own output, in a scratch that the round forgets.
"""

from collections.abc import Sequence as Items

import torch
from torch import Tensor

from specdecode_engine.forward.eagle3 import Eagle3Head
from specdecode_engine.forward.kv_pool import DraftScratch, KvPool
from specdecode_engine.forward.kv_view import PagedView, ScratchView
from specdecode_engine.sampling.sampler import Sampler
from specdecode_engine.slots import DecodeBatch, Rows, SlotTable, Span
from specdecode_engine.speculate.features import FeatureRing
from specdecode_engine.speculate.lag import Lag


class Eagle3Drafter:
    """Drafts a chain with an EAGLE-3 head."""

    def __init__(
        self,
        head: Eagle3Head,
        pool: KvPool,
        scratch: DraftScratch,
        table: SlotTable,
        sampler: Sampler,
        ring: FeatureRing,
        window: int,
    ) -> None:
        self._head = head
        self._pool = pool
        self._scratch = scratch
        self._table = table
        self._sampler = sampler
        self._ring = ring
        self._lag = Lag(window)

    @property
    def capture(self) -> tuple[int, ...]:
        """Output ids of the target layers that the head was trained on."""
        return self._head.capture

    def open(self, slot: int) -> None:
        """Forget what was known of a slot."""
        self._lag.open(slot)

    def follow(self, spans: Items[Span], features: Tensor | None) -> None:
        """Compute the rows of prompt spans whose next token is known.

        The last row of a span waits in the ring: where the prompt ends there, its next token is
        yet to be sampled.
        """
        assert features is not None
        parts, paired, offset = [], [], 0
        for span in spans:
            own = features[offset : offset + span.end - span.start]
            offset += span.end - span.start
            start = self._lag.rows(span.slot)
            if span.end - 1 > start:
                waiting = self._ring.read_span(Span(span.slot, start, span.start))
                parts.append(torch.cat([waiting, own[:-1]]))
                paired.append(Span(span.slot, start, span.end - 1))
            self._ring.write_span(span, own)
        if paired:
            self._compute(self._table.span_rows(paired), torch.cat(parts))
        for span in paired:
            self._lag.reach(span.slot, span.end)

    def propose(self, batch: DecodeBatch, num_steps: int) -> Tensor:
        """Draft a chain behind each bonus token; see `Drafter.propose`."""
        normed, recurrent = self._catch_up(batch)
        drafted = []
        for step in range(num_steps):
            token = self._choose(normed, batch, step)
            drafted.append(token)
            if step + 1 < num_steps:
                layout = self._table.prefix_layout(batch, batch.lengths)
                view = ScratchView(self._pool, self._scratch, step, layout)
                out = self._head.forward(token, recurrent, batch.lengths + step, view)
                normed, recurrent = out.normed, out.recurrent
        return torch.stack(drafted, dim=1)

    def observe(self, batch: DecodeBatch, num_rows: int, features: Tensor | None) -> None:
        """Keep the features of the rows just verified; those of rejected rows are overwritten."""
        assert features is not None
        self._ring.write_rows(batch, num_rows, features)

    def _choose(self, normed: Tensor, batch: DecodeBatch, step: int) -> Tensor:
        logits = self._head.logits(normed)
        slots = list(batch.slot_ids)
        ids = self._head.draft_to_target
        return self._sampler.choose_draft(logits, slots, batch.lengths + 1 + step, ids)

    def _catch_up(self, batch: DecodeBatch) -> tuple[Tensor, Tensor]:
        """Compute every row up to the bonus token's pair; return the last one's outputs."""
        goals = batch.host_lengths
        for span in self._lag.far(batch.slot_ids, goals):
            self._replay(span, batch.host_lengths[batch.slot_ids.index(span.slot)])
        count = self._lag.count(batch.slot_ids, goals)
        rows = self._table.window_rows(batch, batch.lengths - count, count)
        normed, recurrent = self._compute(rows, self._ring.read(rows.slots, rows.positions))
        for slot, goal in zip(batch.slot_ids, goals, strict=True):
            self._lag.reach(slot, goal)
        shape = (batch.size, count, -1)
        return normed.view(shape)[:, -1], recurrent.view(shape)[:, -1]

    def _replay(self, span: Span, length: int) -> None:
        """Catch up on rows that rounds without drafting left out, as far back as the ring goes."""
        kept = Span(span.slot, max(span.start, length - self._ring.kept), span.end)
        if kept.start > span.start:
            lost = self._table.span_rows([Span(span.slot, span.start, kept.start)])
            self._pool.k[:, lost.kv_rows] = 0
            self._pool.v[:, lost.kv_rows] = 0
        if kept.end > kept.start:
            rows = self._table.span_rows([kept])
            self._compute(rows, self._ring.read(rows.slots, rows.positions))
        self._lag.reach(span.slot, span.end)

    def _compute(self, rows: Rows, features: Tensor) -> tuple[Tensor, Tensor]:
        ids = self._table.tokens_at(rows.slots, rows.positions + 1)
        view = PagedView(self._pool, rows.kv_rows, rows.layout)
        out = self._head.forward(ids, self._head.fuse(features), rows.positions, view)
        return out.normed, out.recurrent
