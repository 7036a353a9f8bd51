"""Drafting with a model: a small language model (STANDALONE), or an EAGLE head of any generation.

Sources: Li et al., "EAGLE", 2024, "EAGLE-2", 2024, and "EAGLE-3", 2025. The two differ in a shift
by one token and in aux hidden states; see `DraftLayout`.

A step first computes the rows that are missing up to the bonus token's; the last of them yields
the first draft tokens. After drafted tokens a head reads its own output for the parent node.
"""

from collections.abc import Sequence as Items

from torch import Tensor

from specdecode_engine.batch.decode_inputs import DecodeInputs
from specdecode_engine.batch.draft import Draft
from specdecode_engine.batch.request_table import DecodeBatch, Rows, Span
from specdecode_engine.batch.shapes import DraftShape, ForwardKind
from specdecode_engine.graphs.cache import GraphCache
from specdecode_engine.model.forward import DraftNetwork, ForwardOutputs, store_committed
from specdecode_engine.model.kv.kv_cache import KVCache
from specdecode_engine.sampling.sampler import Sampler, SamplingBatch
from specdecode_engine.speculate.draft_layout import DraftLayout
from specdecode_engine.speculate.draft_state import KEPT_ROWS
from specdecode_engine.speculate.pending_rows import PendingRows
from specdecode_engine.speculate.tree import DraftTreeBuilder, RecurrentStep


class ModelDrafter:
    """Drafts with a language model or an EAGLE head.

    Args:
        graphs: runs the network's forwards.
        window: most rows that one catch-up forward computes per sequence.
        topk: of every draft shape that is a tree.
        chunk_tokens: most rows of a forward that computes what a request lacks before them.
    """

    def __init__(
        self,
        network: DraftNetwork,
        pool: KVCache,
        layout: DraftLayout,
        sampler: Sampler,
        graphs: GraphCache,
        window: int,
        topk: int,
        chunk_tokens: int = KEPT_ROWS,
    ) -> None:
        self.lookahead = layout.lookahead
        self.bonus_rows = layout.bonus_rows
        self.computes_late = layout.ring is None
        self._network = network
        self._pool = pool
        self._layout = layout
        self._table = layout.table
        self._progress = layout.progress
        self._ring = layout.ring
        self._graphs = graphs
        self._pending = PendingRows(
            layout.progress,
            None if layout.ring is None else layout.ring.kept,
            window,
            layout.window_rows,
            self._compute,
            lambda rows: self._pool.clear(rows.slot_mapping),
            chunk_tokens,
        )
        self._builder = DraftTreeBuilder(layout, sampler, topk)

    def open(self, req_index: int, rows: int, length: int) -> None:
        self._progress.open(req_index, rows)
        self._layout.rotary.open(req_index, length)

    def is_complete(self, req_index: int) -> bool:
        return self._progress.is_complete(req_index)

    def prefill(self, spans: Items[Span], aux_hidden_states: Tensor | None) -> None:
        hidden = None
        if self._ring is None:
            spans = [(one, self._progress.num_computed(one), end) for one, _, end in spans]
        else:
            assert aux_hidden_states is not None
            known = self._ring.shift(spans, aux_hidden_states, self._progress, self.lookahead)
            spans, hidden = known
        if spans:
            staged = self._table.stage_spans(spans)
            self._table.staging.send()
            self._compute(self._table.span_rows(staged), hidden)
        for req_index, _, end in spans:
            self._progress.set_num_computed(req_index, end)

    def skip(self, req_indices: Items[int]) -> None:
        self._progress.skip(req_indices)

    def clear(self, req_index: int, start: int, end: int) -> None:
        self._pool.clear(self._table.span_pool_rows((req_index, start, end)))

    def draft(self, batch: DecodeBatch, sampling: SamplingBatch, shape: DraftShape) -> Draft:
        outputs = self._catch_up(batch)
        draft_step = RecurrentStep(self._graphs, outputs.hidden)
        return self._builder.expand(batch, sampling, shape, outputs, draft_step)

    def update_after_verify(
        self, batch: DecodeBatch, most_rows: tuple[int, ...], aux_hidden_states: Tensor | None
    ) -> None:
        if self._ring is not None:
            assert aux_hidden_states is not None
            self._ring.write_rows(batch, aux_hidden_states)
        self._progress.add_pending(batch.host_req_indices, self._required_rows(batch), most_rows)

    def _required_rows(self, batch: DecodeBatch) -> list[int]:
        """Rows that a draft needs, as bounded on the host."""
        return [length + self._layout.bonus_rows for length in batch.host_lengths]

    def _catch_up(self, batch: DecodeBatch) -> ForwardOutputs:
        """Compute the rows up to the bonus token's; return the outputs of the last one."""
        pending = self._pending.catch_up(batch, self._required_rows(batch))
        count = self._graphs.rows_of(ForwardKind.CATCH_UP, pending)
        inputs = DecodeInputs(batch.req_indices, batch.longest, count, batch=batch)
        return self._graphs.run(ForwardKind.CATCH_UP, inputs)

    def _compute(self, rows: Rows, hidden: Tensor | None = None) -> None:
        """Compute rows of which only keys and values are needed."""
        store_committed(self._network, self._pool, self._layout.committed(rows, hidden))
