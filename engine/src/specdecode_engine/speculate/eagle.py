"""EAGLE, EAGLE-2 and EAGLE-3: a one-layer head drafts from the target's own features.

Sources: Li et al., "EAGLE", 2024, "EAGLE-2", 2024, and "EAGLE-3", 2025. Row i of the draft's KV
consumes the pair (feature of position i, token i + 1) and predicts token i + 2; its rotary position
is i. So a sequence of L computed tokens and a bonus token has exactly L draft rows, under the
target's pages. Behind drafted tokens the head goes on from its own output, the parent node's.
"""

from collections.abc import Sequence as Items
from dataclasses import replace

import torch
from torch import Tensor

from specdecode_engine.draft import Draft
from specdecode_engine.draft_shape import DraftShape
from specdecode_engine.forward.eagle_head import Capture, EagleHead
from specdecode_engine.forward.kv_pool import KvPool
from specdecode_engine.forward.kv_view import PagedView
from specdecode_engine.forward.passes import PassInputs, PassOutputs
from specdecode_engine.graph_plan.passes import PassKind
from specdecode_engine.graphs.states import RuntimeStates
from specdecode_engine.slots import DecodeBatch, Rows, SlotTable, Span
from specdecode_engine.speculate.expander import Expander
from specdecode_engine.speculate.features import FeatureRing
from specdecode_engine.speculate.lag import Lag


class EagleDrafter:
    """Drafts with an EAGLE head of any generation."""

    lookahead = 1

    def __init__(
        self,
        head: EagleHead,
        pool: KvPool,
        table: SlotTable,
        states: RuntimeStates,
        expander: Expander,
        ring: FeatureRing,
        window: int,
    ) -> None:
        self._head = head
        self._pool = pool
        self._table = table
        self._states = states
        self._expander = expander
        self._ring = ring
        self._window = window
        self._lag = Lag(table.slots, table.device)

    @property
    def capture(self) -> Capture:
        """What the head reads of the target."""
        return self._head.capture

    def open(self, slot: int, rows: int) -> None:
        """Forget what was known of a slot but its first `rows` rows."""
        self._lag.open(slot, rows)

    def is_whole(self, slot: int) -> bool:
        """Whether no row of a slot had to be zeroed."""
        return self._lag.is_whole(slot)

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

    def propose(self, batch: DecodeBatch, shape: DraftShape) -> Draft:
        """Draft behind each bonus token; see `Drafter.propose`."""
        out = self._catch_up(batch)
        assert out.hidden is not None
        chain = _Chain(self._states, out.hidden)
        return self._expander.expand(batch, shape, out.logits, chain)

    def observe(self, batch: DecodeBatch, num_rows: int, features: Tensor | None) -> None:
        """Keep the features along the accepted path; what stands behind it is overwritten."""
        assert features is not None
        self._ring.write_rows(batch, num_rows, features)
        self._lag.fall_behind(batch.slot_ids, batch.host_lengths, num_rows)

    def _catch_up(self, batch: DecodeBatch) -> PassOutputs:
        """Compute every row up to the bonus token's pair; return what follows the last one."""
        missing = self._lag.missing(batch.slot_ids, batch.host_lengths)
        for row, count in enumerate(missing):
            if count > self._window:
                self._replay(batch.only(row), count)
        count = self._states.catch_up_rows(min(max(missing), self._window))
        rows = self._window_rows(batch, count, count)
        ids = self._table.tokens_at(rows.slots, rows.positions + 1)
        features = self._ring.read(rows.slots, rows.positions)
        inputs = PassInputs(ids, rows.positions, rows.layout, rows.kv_rows, features)
        outputs = self._states.run(PassKind.CATCH_UP, inputs)
        self._lag.catch_up(batch, batch.lengths)
        return outputs

    def _replay(self, one: DecodeBatch, missing: int) -> None:
        """Catch up on rows that rounds without drafting left out, as far back as the ring goes.

        Rows before that are zeroed: the draft sees nothing there, which costs acceptance only.
        """
        lost = missing - self._ring.kept
        if lost > 0:
            self._lag.spoil(one.slot_ids[0])
            rows = self._window_rows(one, missing, lost)
            self._pool.k[:, rows.kv_rows] = 0
            self._pool.v[:, rows.kv_rows] = 0
        kept = min(missing, self._ring.kept)
        rows = self._window_rows(one, kept, kept - self._window)
        self._compute(rows, self._ring.read(rows.slots, rows.positions))

    def _window_rows(self, batch: DecodeBatch, missing: int, count: int) -> Rows:
        """Lay out the first `count` of the last `missing` rows, none that is there already."""
        first = batch.lengths - missing
        return self._table.window_rows(batch, first, count, self._lag.first_missing(batch))

    def _compute(self, rows: Rows, features: Tensor) -> None:
        """Compute rows whose keys and values are all that is wanted."""
        ids = self._table.tokens_at(rows.slots, rows.positions + 1)
        view = PagedView(self._pool, rows.kv_rows, rows.layout)
        self._head.forward(ids, self._head.fuse(features), rows.positions, view)


class _Chain:
    """The head on drafted tokens: every node goes on from its parent's output."""

    def __init__(self, states: RuntimeStates, recurrent: Tensor) -> None:
        self._states = states
        self._recurrent = recurrent  # [B, hidden] of the roots, then [B, k, hidden]

    def __call__(self, inputs: PassInputs, parents: Tensor | None) -> Tensor:
        inputs = replace(inputs, hidden=self._of_parents(parents))
        out = self._states.run(PassKind.STEP, inputs)
        assert out.hidden is not None
        shape = out.hidden.shape if parents is None else (*parents.shape, -1)
        self._recurrent = out.hidden.view(shape)
        return out.logits

    def _of_parents(self, parents: Tensor | None) -> Tensor:
        """Output of each node's parent, [B * k, hidden]."""
        if parents is None:
            return self._recurrent
        if self._recurrent.dim() == 2:
            return self._recurrent.repeat_interleave(parents.shape[1], dim=0)
        width = self._recurrent.shape[2]
        return self._recurrent.gather(1, parents[:, :, None].expand(-1, -1, width)).flatten(0, 1)
