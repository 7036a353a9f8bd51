"""Drafting with layers that read the target's keys and values (FROZEN_KV_MTP).

The draft keeps one hidden state of each request, the target's at the last position with keys and
values. A drafted token sees what the bonus token sees of the target, never another drafted token,
so that nothing is missing after steps without a draft and nodes of a tree need no scratch.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass

from torch import Tensor

from specdecode_engine.batch.decode_inputs import DecodeInputs
from specdecode_engine.batch.draft import Draft
from specdecode_engine.batch.request_table import DecodeBatch, RequestTable, Span
from specdecode_engine.batch.rotary_tables import RotaryOffsets
from specdecode_engine.batch.shapes import DraftShape, ForwardKind
from specdecode_engine.graphs.cache import GraphCache
from specdecode_engine.model.drafts.frozen import FrozenHead
from specdecode_engine.model.forward import ForwardInputs, ForwardOutputs
from specdecode_engine.model.kv.kv_cache import KVCache
from specdecode_engine.model.kv.kv_views import BorrowedView
from specdecode_engine.sampling.sampler import Sampler, SamplingBatch
from specdecode_engine.speculate.draft_layout import of_parents
from specdecode_engine.speculate.draft_state import HiddenStateRing
from specdecode_engine.speculate.tree import DraftTreeBuilder, RecurrentStep
from specdecode_kernels import AttentionMetadata

POSITION = -1
"""Of every drafted row, from the bonus token's on. SGLang and vLLM take that of the last token with
keys and values, transformers the bonus token's (0); nothing but acceptance depends on it."""


class FrozenLayout:
    """Lays out rows that see the tokens with keys and values in the target, and nothing else."""

    def __init__(self, head: FrozenHead, table: RequestTable, ring: HiddenStateRing) -> None:
        self.table = table
        self.ring = ring
        self.rotary = RotaryOffsets(head.rotary_limits, table.num_rows, table.device)
        self.target_ids: Tensor | None = None
        self._seen: tuple[DecodeBatch, int, Tensor, AttentionMetadata] | None = None

    def to_target(self, ids: Tensor) -> Tensor:
        """Return ids [B, n] i64: the draft has the target's vocabulary."""
        return ids

    def bonus(self, inputs: DecodeInputs) -> ForwardInputs:
        """Lay out the bonus tokens, with the target's hidden states before them."""
        batch = inputs.gather(self.table)
        positions, layout = self._seen_by(batch, inputs.rows)
        ids = self.table.tokens_at(batch.req_indices, batch.lengths)
        hidden = self.ring.read(batch.req_indices, batch.lengths - 1)
        return ForwardInputs(ids, positions, layout, hidden=hidden)

    def drafted(self, inputs: DecodeInputs) -> ForwardInputs:
        """Lay out drafted tokens, with what their parents left."""
        assert inputs.tokens is not None
        positions, layout = self._seen_by(inputs.gather(self.table), inputs.rows)
        ids = inputs.tokens.flatten()
        return ForwardInputs(ids, positions, layout, hidden=of_parents(inputs))

    def _seen_by(self, batch: DecodeBatch, rows: int) -> tuple[Tensor, AttentionMetadata]:
        """Rotary positions of `rows` rows of each request, and what they see; as in every step."""
        if self._seen is None or self._seen[0] is not batch or self._seen[1] != rows:
            # Padding has no tokens; its rows see one of page 0.
            lengths = batch.lengths.clamp(min=1).repeat_interleave(rows)
            req_indices = batch.req_indices.repeat_interleave(rows)
            positions = self.rotary.rows(req_indices, lengths + POSITION)
            layout = self.table.prefix_layout(batch, lengths, rows)
            self._seen = batch, rows, positions, layout
        return self._seen[2:]


@dataclass(frozen=True, slots=True, eq=False)
class FrozenForward:
    """Computes rows of a head over the target's keys and values."""

    head: FrozenHead
    pool: KVCache  # the target's

    def __call__(self, inputs: ForwardInputs) -> ForwardOutputs:
        assert inputs.hidden is not None
        owners = [layer.owner for layer in self.head.config.layers]
        view = BorrowedView(self.pool, owners, inputs.layout)
        normed, left = self.head.forward(inputs.ids, inputs.hidden, inputs.positions, view)
        logits, ids = self.head.score(normed)
        return ForwardOutputs(logits, left, ids=ids)


class FrozenDrafter:
    """Drafts with a head without keys and values.

    Args:
        graphs: runs the forwards of `layout`.
        topk: of every draft shape that is a tree.
    """

    lookahead = 0
    computes_late = False
    bonus_rows = 1

    def __init__(
        self, layout: FrozenLayout, sampler: Sampler, graphs: GraphCache, topk: int
    ) -> None:
        self._layout = layout
        self._graphs = graphs
        self._builder = DraftTreeBuilder(layout, sampler, topk)
        self._lost: set[int] = set()  # requests whose hidden state was not kept

    def open(self, req_index: int, rows: int, length: int) -> None:
        self._lost.discard(req_index)
        self._layout.rotary.open(req_index, length)

    def is_complete(self, req_index: int) -> bool:
        return True

    def prefill(self, spans: Items[Span], aux_hidden_states: Tensor | None) -> None:
        assert aux_hidden_states is not None
        last = -1
        for req_index, start, end in spans:
            last += end - start
            row = aux_hidden_states[last : last + 1]
            self._layout.ring.write_span((req_index, end - 1, end), row)
            self._lost.discard(req_index)

    def skip(self, req_indices: Items[int]) -> None:
        self._lost.update(req_indices)

    def clear(self, req_index: int, start: int, end: int) -> None:
        """There are no rows."""

    def draft(self, batch: DecodeBatch, sampling: SamplingBatch, shape: DraftShape) -> Draft:
        for req_index in self._lost.intersection(batch.host_req_indices):
            self._layout.ring.clear(req_index)
        inputs = DecodeInputs(batch.req_indices, batch.longest, 1, batch=batch)
        outputs = self._graphs.run(ForwardKind.CATCH_UP, inputs)
        draft_step = RecurrentStep(self._graphs, outputs.hidden)
        return self._builder.expand(batch, sampling, shape, outputs, draft_step)

    def update_after_verify(
        self, batch: DecodeBatch, most_rows: tuple[int, ...], aux_hidden_states: Tensor | None
    ) -> None:
        assert aux_hidden_states is not None
        self._layout.ring.write_rows(batch, aux_hidden_states)
        self._lost.difference_update(batch.host_req_indices)
