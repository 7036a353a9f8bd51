"""Drafting a block of tokens in one forward of the draft (DFlash, DSpark).

The draft keeps keys and values of known positions alone, one row per token that the target has
computed; a row depends on no later token. They are computed from the target's hidden states: those
of a prompt at once, later ones by the forward of the next draft. The first `num_steps` drafted
tokens are verified. Where rows take time, only these are computed for several requests; else the
block is as wide as the draft was trained for (docs/decisions/0031-how-wide-blocks-are.md).
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specdecode_engine.batch.decode_inputs import DecodeInputs
from specdecode_engine.batch.draft import Draft
from specdecode_engine.batch.request_table import DecodeBatch, RequestTable, Rows, Span
from specdecode_engine.batch.rotary_tables import RotaryOffsets
from specdecode_engine.batch.shapes import DraftShape, ForwardKind
from specdecode_engine.graphs.cache import GraphCache
from specdecode_engine.model.drafts.dflash import BlockHead
from specdecode_engine.model.drafts.markov_head import MarkovHead
from specdecode_engine.model.forward import BestTokens, ForwardOutputs
from specdecode_engine.model.kv.block_view import BlockMasks, BlockView
from specdecode_engine.model.kv.kv_cache import KVCache
from specdecode_engine.sampling.sampler import Sampler, SamplingBatch
from specdecode_engine.speculate.block_tokens import BlockTokens, draft_chain
from specdecode_engine.speculate.draft_state import DraftKvProgress, HiddenStateRing
from specdecode_engine.speculate.pending_rows import PendingRows

SHORT_BLOCKS_FROM = 2  # requests


@dataclass(frozen=True, slots=True, eq=False)
class BlockForward:
    """Computes the latest context rows and a block after the bonus token, from tensors in place.

    Attributes:
        window: context rows that it computes; those computed before are left out.
        is_chain: whether every draft is a chain. With a Markov head it chooses the likeliest one.
    """

    head: BlockHead[Any]
    pool: KVCache
    table: RequestTable
    progress: DraftKvProgress
    ring: HiddenStateRing
    rotary: RotaryOffsets
    masks: BlockMasks
    window: int
    is_chain: bool

    def __call__(self, inputs: DecodeInputs) -> ForwardOutputs:
        """Return the logits of the first `inputs.rows` drafted positions of each request."""
        batch, head = inputs.gather(self.table), self.head
        count = self.window if inputs.committed is None else inputs.committed
        self.write_context(self.missing_rows(batch, count, count))
        self.progress.write_first_missing(batch, batch.lengths)
        hidden = self._run_block(batch, inputs)[:, : inputs.rows].flatten(0, 1)
        read = hidden if head.config.recurrent_width else None
        outputs = ForwardOutputs(head.logits(hidden), read)
        if head.markov is None or not (self.is_chain and inputs.is_greedy):
            return outputs
        return outputs._replace(best=self._greedy_chain(head.markov, batch, outputs, inputs.rows))

    def _greedy_chain(
        self, markov: MarkovHead, batch: DecodeBatch, outputs: ForwardOutputs, rows: int
    ) -> BestTokens:
        """Return the tokens of the likeliest chain [B * rows, 1]; their scores are not computed."""
        bonus = self.table.tokens_at(batch.req_indices, batch.lengths)
        target_ids = self.head.draft_to_target
        ids = draft_chain(
            markov, bonus, outputs, rows, target_ids, lambda logits, _: logits.argmax(-1)
        ).view(-1, 1)
        return BestTokens(torch.zeros_like(ids, dtype=torch.float32), ids)

    def missing_rows(self, batch: DecodeBatch, pending: int, count: int) -> Rows:
        """Lay out the first `count` of the last `pending` rows, without those computed already."""
        return self.table.window_rows(batch, -pending, count, self.progress.first_missing)

    def write_context(self, rows: Rows, hidden: Tensor | None = None) -> None:
        """Compute context rows.

        Args:
            hidden: the rows' aux hidden states [rows, width]; None: those in the ring.
        """
        if hidden is None:
            hidden = self.ring.read(rows.req_indices, rows.positions)
        positions = self.rotary.rows(rows.req_indices, rows.positions)
        self.head.write_context(hidden, positions, self.pool, rows.slot_mapping)

    def shortens_blocks(self, batch_size: int, *, uses_graphs: bool) -> bool:
        """Whether only the rows of positions that are verified are computed.

        Their number is a part of the shape of a CUDA graph, and next to no time on a GPU.
        """
        is_on_cpu = self.table.device.type == "cpu"
        return is_on_cpu and not uses_graphs and batch_size >= SHORT_BLOCKS_FROM

    def _run_block(self, batch: DecodeBatch, inputs: DecodeInputs) -> Tensor:
        """Return the hidden states of the drafted positions [B, at least rows, hidden]."""
        config, table = self.head.config, self.table
        is_short = self.shortens_blocks(batch.size, uses_graphs=inputs.committed is None)
        count = inputs.rows + config.first_row if is_short else config.block_size
        ids = table.tokens_at(batch.req_indices, batch.lengths)
        places = (batch.lengths[:, None] + table.offsets(count)).flatten()
        positions = self.rotary.rows(batch.req_indices.repeat_interleave(count), places)
        layout = table.prefix_layout(batch, batch.lengths.repeat_interleave(count), count)
        masks = self.masks.of(batch.size, count)
        view = BlockView(self.pool, layout, masks, config.causal_layers)
        return self.head.forward(ids, positions, view)


class BlockDrafter:
    """Drafts with a head whose forward predicts a block.

    Args:
        graphs: runs `forward`.
        max_steps: drafted positions of the widest draft; whole blocks score as many for each.
        topk: of every draft shape that is a tree.
    """

    lookahead = 0
    computes_late = False
    bonus_rows = 0

    def __init__(
        self, forward: BlockForward, sampler: Sampler, graphs: GraphCache, max_steps: int, topk: int
    ) -> None:
        self._forward = forward
        self._pool = forward.pool
        self._table = forward.table
        self._progress = forward.progress
        self._graphs = graphs
        self._max_steps = max_steps
        self._tokens = BlockTokens(
            forward.table,
            sampler,
            topk,
            forward.head.draft_to_target,
            forward.head.markov,
            forward.head.confidence,
        )
        self._pending = PendingRows(
            forward.progress,
            forward.ring.kept,
            forward.window,
            forward.missing_rows,
            forward.write_context,
            lambda rows: self._pool.clear(rows.slot_mapping),
        )

    def open(self, req_index: int, rows: int, length: int) -> None:
        self._progress.open(req_index, rows)
        self._forward.rotary.open(req_index, length)

    def is_complete(self, req_index: int) -> bool:
        return self._progress.is_complete(req_index)

    def prefill(self, spans: Items[Span], aux_hidden_states: Tensor | None) -> None:
        assert aux_hidden_states is not None
        staged = self._table.stage_spans(spans)
        self._table.staging.send()
        self._forward.write_context(self._table.span_rows(staged), aux_hidden_states)
        for req_index, _, end in spans:
            self._progress.set_num_computed(req_index, end)

    def skip(self, req_indices: Items[int]) -> None:
        self._progress.skip(req_indices)

    def clear(self, req_index: int, start: int, end: int) -> None:
        self._pool.clear(self._table.span_pool_rows((req_index, start, end)))

    def draft(self, batch: DecodeBatch, sampling: SamplingBatch, shape: DraftShape) -> Draft:
        pending = self._pending.catch_up(batch, batch.host_lengths)
        uses_graphs = self._graphs.uses_graphs
        is_short = self._forward.shortens_blocks(batch.size, uses_graphs=uses_graphs)
        inputs = DecodeInputs(
            batch.req_indices,
            batch.longest,
            shape.num_steps if is_short else self._max_steps,
            batch=batch,
            committed=None if uses_graphs else pending,
            is_greedy=sampling.params is None,
        )
        outputs = self._graphs.run(ForwardKind.BLOCK, inputs)
        return self._tokens.choose(batch, sampling, shape, outputs)

    def update_after_verify(
        self, batch: DecodeBatch, most_rows: tuple[int, ...], aux_hidden_states: Tensor | None
    ) -> None:
        assert aux_hidden_states is not None
        self._forward.ring.write_rows(batch, aux_hidden_states)
        self._progress.add_pending(batch.host_req_indices, batch.host_lengths, most_rows)
