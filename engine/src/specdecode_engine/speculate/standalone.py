"""STANDALONE: a small language model drafts from the tokens alone, without any hidden state.

Row i of the draft's KV belongs to token i, as in the target, under the same pages. A round first
computes the rows that the draft has not seen, the bonus token's included; the last of them yields
the first draft tokens.
"""

from collections.abc import Sequence as Items

from torch import Tensor

from specdecode_engine.draft import Draft
from specdecode_engine.draft_shape import DraftShape
from specdecode_engine.forward.eagle_head import Capture
from specdecode_engine.forward.kv_pool import KvPool
from specdecode_engine.forward.kv_view import PagedView
from specdecode_engine.forward.llama import Llama
from specdecode_engine.forward.passes import PassInputs
from specdecode_engine.graph_plan.passes import PassKind
from specdecode_engine.graphs.states import RuntimeStates
from specdecode_engine.slots import DecodeBatch, Rows, SlotTable, Span
from specdecode_engine.speculate.expander import Expander
from specdecode_engine.speculate.lag import Lag


class StandaloneDrafter:
    """Drafts with a language model that shares the target's vocabulary."""

    lookahead = 0
    capture = Capture()

    def __init__(
        self,
        model: Llama,
        pool: KvPool,
        table: SlotTable,
        states: RuntimeStates,
        expander: Expander,
        window: int,
    ) -> None:
        self._model = model
        self._pool = pool
        self._table = table
        self._states = states
        self._expander = expander
        self._window = window
        self._lag = Lag(table.slots, table.device)

    def open(self, slot: int, rows: int) -> None:
        """Forget what was known of a slot but its first `rows` rows."""
        self._lag.open(slot, rows)

    def is_whole(self, slot: int) -> bool:
        """Nothing is ever lost: the tokens are all there."""
        return self._lag.is_whole(slot)

    def follow(self, spans: Items[Span], features: Tensor | None) -> None:
        """Compute the draft's KV of spans."""
        assert features is None
        self._compute(self._table.span_rows(spans))
        for span in spans:
            self._lag.reach(span.slot, span.end)

    def propose(self, batch: DecodeBatch, shape: DraftShape) -> Draft:
        """Draft behind each bonus token; see `Drafter.propose`."""
        return self._expander.expand(batch, shape, self._catch_up(batch), self._cell)

    def observe(self, batch: DecodeBatch, num_rows: int, features: Tensor | None) -> None:
        """Count the rows that the draft lacks; it reads committed tokens from the table."""
        assert features is None
        self._lag.fall_behind(batch.slot_ids, self._goals(batch), num_rows)

    def _goals(self, batch: DecodeBatch) -> list[int]:
        """Rows that a draft needs: one for every computed token and the bonus token's."""
        return [length + 1 for length in batch.host_lengths]

    def _catch_up(self, batch: DecodeBatch) -> Tensor:
        """Compute every row up to the bonus token's; return its logits [B, vocab]."""
        missing = self._lag.missing(batch.slot_ids, self._goals(batch))
        for row, count in enumerate(missing):
            if count > self._window:
                one = batch.only(row)
                self._compute(self._window_rows(one, count, count - self._window))
        count = self._states.catch_up_rows(min(max(missing), self._window))
        rows = self._window_rows(batch, count, count)
        ids = self._table.tokens_at(rows.slots, rows.positions)
        inputs = PassInputs(ids, rows.positions, rows.layout, rows.kv_rows)
        outputs = self._states.run(PassKind.CATCH_UP, inputs)
        self._lag.catch_up(batch, batch.lengths + 1)
        return outputs.logits

    def _window_rows(self, batch: DecodeBatch, missing: int, count: int) -> Rows:
        """Lay out the first `count` of the last `missing` rows, none that is there already."""
        first = batch.lengths + 1 - missing
        return self._table.window_rows(batch, first, count, self._lag.first_missing(batch))

    def _compute(self, rows: Rows) -> None:
        """Compute rows whose keys and values are all that is wanted."""
        ids = self._table.tokens_at(rows.slots, rows.positions)
        self._model.forward(ids, rows.positions, PagedView(self._pool, rows.kv_rows, rows.layout))

    def _cell(self, inputs: PassInputs, parents: Tensor | None) -> Tensor:
        return self._states.run(PassKind.STEP, inputs).logits
