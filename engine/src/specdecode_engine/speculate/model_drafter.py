"""Drafting with a model: a small language model (STANDALONE), or an EAGLE head of any generation.

Sources: Li et al., "EAGLE", 2024, "EAGLE-2", 2024, and "EAGLE-3", 2025. The two differ in a shift
by one token and in aux hidden states. Row i of a language model's KV belongs to token i, as in the
target, so L computed tokens and a bonus token need L + 1 rows. Row i of a head consumes the pair
(hidden state of position i, token i + 1) and predicts token i + 2, so they need L rows. Rotary
positions are row numbers, and rows lie under the target's pages.

A step first computes the rows that are missing up to the bonus token's; the last of them yields
the first draft tokens. After drafted tokens a head reads its own output for the parent node.
"""

from collections.abc import Sequence as Items
from dataclasses import replace

import torch
from torch import Tensor

from specdecode_engine.batch.draft import Draft
from specdecode_engine.batch.request_table import DecodeBatch, RequestTable, Rows, Span
from specdecode_engine.batch.shapes import DraftShape, ForwardKind
from specdecode_engine.graphs.cache import GraphCache
from specdecode_engine.model.forward import (
    DraftNetwork,
    ForwardInputs,
    ForwardOutputs,
    forward_committed,
)
from specdecode_engine.model.kv_cache import KVCache
from specdecode_engine.model.llama import Llama
from specdecode_engine.sampling.sampler import Sampler, SamplingBatch
from specdecode_engine.speculate.draft_state import DraftKvProgress, HiddenStateRing
from specdecode_engine.speculate.tree import DraftTreeBuilder


class ModelDrafter:
    """Drafts with a language model or an EAGLE head.

    Args:
        graphs: runs the network's forwards.
        ring: for an EAGLE head, the newest aux hidden states of the target.
        window: most rows that one catch-up forward computes per sequence.
    """

    def __init__(
        self,
        network: DraftNetwork,
        pool: KVCache,
        table: RequestTable,
        sampler: Sampler,
        graphs: GraphCache,
        ring: HiddenStateRing | None,
        window: int,
    ) -> None:
        self.lookahead = 0 if ring is None else 1
        self._network = network
        self._pool = pool
        self._table = table
        self._graphs = graphs
        self._ring = ring
        self._window = window
        self._bonus_rows = 1 - self.lookahead  # rows beyond the computed tokens
        target_ids = None if isinstance(network, Llama) else network.draft_to_target
        self._builder = DraftTreeBuilder(table, sampler, self._bonus_rows, target_ids)
        self._progress = DraftKvProgress(table.num_rows, table.device)

    def open(self, req_index: int, rows: int) -> None:
        self._progress.open(req_index, rows)

    def is_complete(self, req_index: int) -> bool:
        return self._progress.is_complete(req_index)

    def prefill(self, spans: Items[Span], aux_hidden_states: Tensor | None) -> None:
        hidden = None
        if self._ring is not None:
            assert aux_hidden_states is not None
            spans, hidden = self._shift(self._ring, spans, aux_hidden_states)
        if spans:
            staged = self._table.stage_spans(spans)
            self._table.staging.send()
            self._compute(self._table.span_rows(staged), hidden)
        for req_index, _, end in spans:
            self._progress.set_num_computed(req_index, end)

    def _shift(
        self, ring: HiddenStateRing, spans: Items[Span], hidden: Tensor
    ) -> tuple[list[Span], Tensor]:
        """Select the rows whose next token is known, with their hidden states.

        The last row of a span waits in the ring: where the prompt ends, its next token is not
        sampled yet.
        """
        known, pieces, offset = [], [hidden[:0]], 0
        for req_index, start, end in spans:
            own = hidden[offset : offset + end - start]
            offset += end - start
            computed = self._progress.num_computed(req_index)
            if end - 1 > computed:
                pieces += [ring.read_span((req_index, computed, start)), own[:-1]]
                known.append((req_index, computed, end - 1))
            ring.write_span((req_index, start, end), own)
        return known, torch.cat(pieces)

    def draft(self, batch: DecodeBatch, sampling: SamplingBatch, shape: DraftShape) -> Draft:
        outputs = self._catch_up(batch)
        draft_step = _DraftStep(self._graphs, outputs.hidden)
        return self._builder.expand(batch, sampling, shape, outputs.logits, draft_step)

    def update_after_verify(
        self, batch: DecodeBatch, num_rows: int, aux_hidden_states: Tensor | None
    ) -> None:
        if self._ring is not None:
            assert aux_hidden_states is not None
            self._ring.write_rows(batch, num_rows, aux_hidden_states)
        self._progress.add_pending(batch.host_req_indices, self._required_rows(batch), num_rows)

    def _required_rows(self, batch: DecodeBatch) -> list[int]:
        """Rows that a draft needs, as bounded on the host."""
        return [length + self._bonus_rows for length in batch.host_lengths]

    def _end(self, batch: DecodeBatch) -> Tensor:
        """Rows that a draft needs [B] i64."""
        return batch.lengths + 1 if self._bonus_rows else batch.lengths

    def _catch_up(self, batch: DecodeBatch) -> ForwardOutputs:
        """Compute the rows up to the bonus token's; return the outputs of the last one."""
        pending = self._progress.max_pending(batch.host_req_indices, self._required_rows(batch))
        for row, count in enumerate(pending):
            if count > self._window:
                self._catch_up_to_window(batch.only(row), count)
        count = self._graphs.catch_up_rows(min(max(pending), self._window))
        rows = self._window_rows(batch, count, count)
        outputs = self._graphs.run(ForwardKind.CATCH_UP, self._inputs(rows, self._read_ring(rows)))
        self._progress.complete(batch, self._end(batch))
        return outputs

    def _catch_up_to_window(self, one: DecodeBatch, pending: int) -> None:
        """Compute all but the last `window` of the pending rows.

        Rows that are older than the ring are zeroed: attending to them is harmless and costs
        acceptance only.
        """
        if self._ring is not None and pending > self._ring.kept:
            self._progress.invalidate(one.host_req_indices[0])
            rows = self._window_rows(one, pending, pending - self._ring.kept)
            self._pool.clear(rows.slot_mapping)
            pending = self._ring.kept
        rows = self._window_rows(one, pending, pending - self._window)
        self._compute(rows, self._read_ring(rows))

    def _window_rows(self, batch: DecodeBatch, pending: int, count: int) -> Rows:
        """Lay out the first `count` of the last `pending` rows, without those already computed."""
        first = self._end(batch) - pending
        return self._table.window_rows(batch, first, count, self._progress.first_missing(batch))

    def _read_ring(self, rows: Rows) -> Tensor | None:
        return None if self._ring is None else self._ring.read(rows.req_indices, rows.positions)

    def _inputs(self, rows: Rows, hidden: Tensor | None) -> ForwardInputs:
        token_positions = rows.positions + 1 if self.lookahead else rows.positions
        ids = self._table.tokens_at(rows.req_indices, token_positions)
        return ForwardInputs(ids, rows.positions, rows.layout, rows.slot_mapping, hidden)

    def _compute(self, rows: Rows, hidden: Tensor | None) -> None:
        """Compute rows of which only keys and values are needed."""
        forward_committed(self._network, self._pool, self._inputs(rows, hidden))


class _DraftStep:
    """Forwards over drafted tokens; a head reads its own output for each node's parent."""

    def __init__(self, graphs: GraphCache, recurrent: Tensor | None) -> None:
        self._graphs = graphs
        self._recurrent = recurrent  # [B, hidden] of the roots, then [B, k, hidden]

    def __call__(self, inputs: ForwardInputs, parents: Tensor | None) -> Tensor:
        if self._recurrent is not None:
            inputs = replace(inputs, hidden=_of_parents(self._recurrent, parents))
        out = self._graphs.run(ForwardKind.DRAFT_STEP, inputs)
        if out.hidden is not None:
            shape = out.hidden.shape if parents is None else (*parents.shape, -1)
            self._recurrent = out.hidden.view(shape)
        return out.logits


def _of_parents(recurrent: Tensor, parents: Tensor | None) -> Tensor:
    """Output of each node's parent, [B * k, hidden]."""
    if parents is None:
        return recurrent
    if recurrent.dim() == 2:
        return recurrent.repeat_interleave(parents.shape[1], dim=0)
    width = recurrent.shape[2]
    return recurrent.gather(1, parents[:, :, None].expand(-1, -1, width)).flatten(0, 1)
