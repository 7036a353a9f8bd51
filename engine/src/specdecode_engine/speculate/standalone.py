"""STANDALONE: a small language model drafts from the tokens alone, without any hidden state.

Row i of the draft's KV belongs to token i, as in the target, under the same pages. A round first
computes the rows that the draft has not seen, the bonus token's included; the last of them yields
the first draft token. The further ones live in a scratch that the round forgets.
"""

from collections.abc import Sequence as Items

import torch
from torch import Tensor

from specdecode_engine.forward.kv_pool import DraftScratch, KvPool
from specdecode_engine.forward.kv_view import PagedView, ScratchView
from specdecode_engine.forward.llama import Llama
from specdecode_engine.sampling.sampler import Sampler
from specdecode_engine.slots import DecodeBatch, Rows, SlotTable, Span
from specdecode_engine.speculate.lag import Lag


class StandaloneDrafter:
    """Drafts a chain with a language model that shares the target's vocabulary."""

    capture: tuple[int, ...] = ()

    def __init__(
        self,
        model: Llama,
        pool: KvPool,
        scratch: DraftScratch,
        table: SlotTable,
        sampler: Sampler,
        window: int,
    ) -> None:
        self._model = model
        self._pool = pool
        self._scratch = scratch
        self._table = table
        self._sampler = sampler
        self._lag = Lag(window)

    def open(self, slot: int) -> None:
        """Forget what was known of a slot."""
        self._lag.open(slot)

    def follow(self, spans: Items[Span], features: Tensor | None) -> None:
        """Compute the draft's KV of spans."""
        assert features is None
        self._compute(self._table.span_rows(spans))
        for span in spans:
            self._lag.reach(span.slot, span.end)

    def propose(self, batch: DecodeBatch, num_steps: int) -> Tensor:
        """Draft a chain behind each bonus token; see `Drafter.propose`."""
        hidden = self._catch_up(batch)
        drafted = []
        for step in range(num_steps):
            positions = batch.lengths + 1 + step
            logits = self._model.logits(hidden)
            token = self._sampler.choose_draft(logits, list(batch.slot_ids), positions)
            drafted.append(token)
            if step + 1 < num_steps:
                layout = self._table.prefix_layout(batch, batch.lengths + 1)
                view = ScratchView(self._pool, self._scratch, step, layout)
                hidden = self._model.forward(token, positions, view).last
        return torch.stack(drafted, dim=1)

    def observe(self, batch: DecodeBatch, num_rows: int, features: Tensor | None) -> None:
        """Keep nothing: the draft reads committed tokens from the table."""
        assert features is None

    def _catch_up(self, batch: DecodeBatch) -> Tensor:
        """Compute every row up to the bonus token's; return its output [B, hidden]."""
        goals = [length + 1 for length in batch.host_lengths]
        far = self._lag.far(batch.slot_ids, goals)
        if far:
            self.follow(far, None)
        count = self._lag.count(batch.slot_ids, goals)
        hidden = self._compute(self._table.window_rows(batch, batch.lengths + 1 - count, count))
        for slot, goal in zip(batch.slot_ids, goals, strict=True):
            self._lag.reach(slot, goal)
        return hidden.view(batch.size, count, -1)[:, -1]

    def _compute(self, rows: Rows) -> Tensor:
        ids = self._table.tokens_at(rows.slots, rows.positions)
        view = PagedView(self._pool, rows.kv_rows, rows.layout)
        return self._model.forward(ids, rows.positions, view).last
