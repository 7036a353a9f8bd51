"""Drafting with a module for each draft step (MTP chain, multi-layer EAGLE).

Row i of module m reads token i + 1 + m and a hidden state of position i, the target's or the output
of module m - 1 for the row, and predicts token i + 2 + m. With L tokens computed and the bonus
token known, the rows up to L - 1 - m of module m are final. The other rows up to L - 1 are computed
from drafted tokens, the last of them gives the next one, and the next step computes them again. So
all modules of a step compute the same rows: those that the last of them lacks, and as many more as
there are modules before it. Each module has keys and values of its own, under the target's pages.

The modules that a step does not use lack its rows; each module has a progress of its own.
"""

from collections.abc import Sequence as Items
from functools import partial

import torch
from torch import Tensor

from specdecode_engine.batch.decode_inputs import DecodeInputs
from specdecode_engine.batch.draft import Draft
from specdecode_engine.batch.request_table import DecodeBatch, RequestTable, Rows, Span
from specdecode_engine.batch.rotary_tables import RotaryOffsets
from specdecode_engine.batch.shapes import DraftShape, ForwardKind
from specdecode_engine.graphs.cache import GraphCache
from specdecode_engine.model.drafts.mtp import MtpChainHead
from specdecode_engine.model.forward import ForwardOutputs
from specdecode_engine.model.kv.kv_cache import KVCache
from specdecode_engine.model.kv.kv_views import PagedView
from specdecode_engine.sampling.sampler import Sampler, SamplingBatch
from specdecode_engine.speculate.draft_state import DraftKvProgress, HiddenStateRing
from specdecode_engine.speculate.pending_rows import PendingRows
from specdecode_engine.speculate.tree import path_scores


class ChainForward:
    """Computes rows of modules, from tensors that stay in place."""

    def __init__(
        self, head: MtpChainHead, pool: KVCache, table: RequestTable, ring: HiddenStateRing
    ) -> None:
        self.head = head
        self.pool = pool
        self.table = table
        self.ring = ring
        self.rotary = RotaryOffsets(head.rotary_limits, table.num_rows, table.device)
        self.progress = tuple(DraftKvProgress(table.num_rows, table.device) for _ in head.modules)
        self._latest: tuple[DecodeBatch, int, Rows] | None = None

    def __call__(self, inputs: DecodeInputs) -> ForwardOutputs:
        """Compute the last `inputs.rows` rows of each request with module `inputs.first`.

        Rows that another sequence may share are left out: the first row that the last module lacks
        is computed repeatedly.
        """
        module, batch = inputs.first, inputs.gather(self.table)
        rows = self._latest_rows(batch, inputs.rows)
        scored, output = self.forward(module, rows, inputs.hidden)
        final = (batch.lengths - module).clamp(min=0)
        self.progress[module].write_first_missing(batch, final)
        last = scored.view(batch.size, inputs.rows, -1)[:, -1]
        return ForwardOutputs(self.head.logits(last), output)

    def forward(
        self, module: int, rows: Rows, hidden: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Compute rows and store their keys and values.

        Args:
            hidden: what the rows read [rows, hidden]; None: the target's hidden states in the ring.

        Returns:
            What `logits` takes, and what the next module reads; None: the target's hidden states.
        """
        if hidden is None:
            hidden = self.head.fuse(self.ring.read(rows.req_indices, rows.positions))
        ids = self.table.tokens_at(rows.req_indices, rows.positions + (1 + module))
        positions = self.rotary.rows(rows.req_indices, rows.positions)
        view = PagedView(self.pool, rows.slot_mapping, rows.layout)
        scored, output = self.head.forward_module(module, ids, hidden, positions, view)
        return scored, output if self.head.config.inputs.is_chained else None

    def forward_all(self, modules: int, rows: Rows, hidden: Tensor | None = None) -> None:
        """Compute rows of the first modules, of which only keys and values are needed.

        Args:
            hidden: the target's hidden states of the rows [rows, width]; None: those in the ring.
        """
        first = None if hidden is None else self.head.fuse(hidden)
        read = first
        for module in range(modules):
            _, output = self.forward(module, rows, read)
            read = first if output is None else output

    def missing_rows(self, module: int, batch: DecodeBatch, pending: int, count: int) -> Rows:
        """Lay out the first `count` of the last `pending` final rows that a module lacks."""
        lowest = self.progress[module].first_missing
        return self.table.window_rows(batch, -module - pending, count, lowest)

    def clear(self, module: int, rows: Rows) -> None:
        """Zero the keys and values of rows that this module and those before it lack."""
        for number in range(module + 1):
            lowest = self.progress[number].first_missing
            lacking = torch.maximum(rows.positions, lowest[rows.req_indices])
            self.pool.clear_layer(number, self.table.pool_rows(rows.req_indices, lacking))

    def _latest_rows(self, batch: DecodeBatch, count: int) -> Rows:
        """Lay out the last `count` rows before the bonus token's, the same for all modules."""
        if self._latest is None or self._latest[0] is not batch or self._latest[1] != count:
            lowest = self.progress[-1].first_missing
            rows = self.table.window_rows(batch, -count, count, lowest)
            self._latest = batch, count, rows
        return self._latest[2]


class ChainDrafter:
    """Drafts a chain, each token with a module of its own.

    Args:
        graphs: runs `forward`.
        window: the most rows that a module may lack in a step; more are computed before it.
    """

    computes_late = False

    def __init__(
        self, forward: ChainForward, sampler: Sampler, graphs: GraphCache, window: int
    ) -> None:
        modules = len(forward.progress)
        self.lookahead = modules
        self.bonus_rows = 1 - modules
        self._forward = forward
        self._pool = forward.pool
        self._table = forward.table
        self._progress = forward.progress
        self._sampler = sampler
        self._graphs = graphs
        self._partial: set[int] = set()  # requests of which the last module lacks rows
        self._pending = [
            PendingRows(
                progress,
                forward.ring.kept - module,
                window,
                partial(forward.missing_rows, module),
                partial(forward.forward_all, module + 1),
                partial(forward.clear, module),
            )
            for module, progress in enumerate(forward.progress)
        ]

    def open(self, req_index: int, rows: int, length: int) -> None:
        for progress in self._progress:
            progress.open(req_index, rows)
        self._partial.discard(req_index)
        self._forward.rotary.open(req_index, length)

    def is_complete(self, req_index: int) -> bool:
        is_whole = all(progress.is_complete(req_index) for progress in self._progress)
        return is_whole and req_index not in self._partial

    def prefill(self, spans: Items[Span], aux_hidden_states: Tensor | None) -> None:
        assert aux_hidden_states is not None
        ring, last = self._forward.ring, self._progress[-1]
        known, hidden = ring.shift(spans, aux_hidden_states, last, self.lookahead)
        if known:
            staged = self._table.stage_spans(known)
            self._table.staging.send()
            self._forward.forward_all(self.lookahead, self._table.span_rows(staged), hidden)
        for req_index, _, end in known:
            for progress in self._progress:
                progress.set_num_computed(req_index, end)

    def skip(self, req_indices: Items[int]) -> None:
        for progress in self._progress:
            progress.skip(req_indices)

    def clear(self, req_index: int, start: int, end: int) -> None:
        self._pool.clear(self._table.span_pool_rows((req_index, start, end)))

    def draft(self, batch: DecodeBatch, sampling: SamplingBatch, shape: DraftShape) -> Draft:
        steps = shape.num_steps
        missing = self._catch_up(batch, steps)
        count = self._graphs.rows_of(ForwardKind.MODULE, missing + steps - 1)
        inputs = DecodeInputs(batch.req_indices, batch.longest, count, batch=batch)
        positions = self._table.next_positions(batch, steps)
        drafted, confidences = list[Tensor](), list[Tensor]()
        for module in range(steps):
            outputs = self._graphs.run(ForwardKind.MODULE, inputs)
            drafted.append(self._choose(outputs, sampling, positions[:, module]))
            if shape.verify_tokens:
                rows = outputs.logits, sampling, positions[:, module], None
                confidences.append(self._sampler.draft_confidence(*rows))
            if module + 1 < steps:
                # The next module reads it where a committed token will be.
                self._table.put_tokens(batch.req_indices, positions[:, module], drafted[-1])
                inputs = inputs._replace(first=module + 1, hidden=outputs.hidden)
        return Draft(shape, torch.stack(drafted, dim=1), scores=path_scores(confidences))

    def update_after_verify(
        self, batch: DecodeBatch, most_rows: tuple[int, ...], aux_hidden_states: Tensor | None
    ) -> None:
        assert aux_hidden_states is not None
        self._forward.ring.write_rows(batch, aux_hidden_states)
        for module, progress in enumerate(self._progress):
            progress.add_pending(batch.host_req_indices, _required(batch, module), most_rows)

    def _catch_up(self, batch: DecodeBatch, steps: int) -> int:
        """Compute what the last of `steps` modules lacks, but for the latest rows; return these."""
        last, req_indices = steps - 1, batch.host_req_indices
        missing = self._pending[last].catch_up(batch, _required(batch, last))
        for progress in self._progress[:last]:
            progress.complete(req_indices)
        if steps < len(self._progress):
            self._partial.update(req_indices)
        else:
            self._partial.difference_update(req_indices)
        return missing

    def _choose(
        self, outputs: ForwardOutputs, sampling: SamplingBatch, positions: Tensor
    ) -> Tensor:
        """Return the draft token of each request [B] i64."""
        if outputs.best is not None and sampling.params is None:
            return outputs.best.ids[:, 0]
        return self._sampler.sample_draft(outputs.logits, sampling, positions)


def _required(batch: DecodeBatch, module: int) -> list[int]:
    """Final rows that a module needs, as bounded on the host."""
    return [length - module for length in batch.host_lengths]
