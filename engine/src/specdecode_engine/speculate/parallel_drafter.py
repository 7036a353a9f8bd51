"""Drafting all tokens in one forward of an EAGLE-3 head (P-EAGLE).

Rows of pairs are those of an EAGLE head. Rows of masks follow them in the pages of the draft, where
the rows of the next pairs overwrite them: no row that counts as computed is one of a mask.
"""

from dataclasses import dataclass

import torch

from specdecode_engine.batch.decode_inputs import DecodeInputs
from specdecode_engine.batch.draft import Draft
from specdecode_engine.batch.request_table import DecodeBatch
from specdecode_engine.batch.shapes import DraftShape, ForwardKind
from specdecode_engine.graphs.cache import GraphCache
from specdecode_engine.model.drafts.peagle import PEagleHead
from specdecode_engine.model.forward import ForwardInputs, ForwardOutputs, forward_committed
from specdecode_engine.model.kv.kv_cache import KVCache
from specdecode_engine.sampling.sampler import Sampler, SamplingBatch
from specdecode_engine.speculate.block_tokens import BlockTokens
from specdecode_engine.speculate.draft_layout import DraftLayout
from specdecode_engine.speculate.model_drafter import ModelDrafter


@dataclass(frozen=True, slots=True, eq=False)
class ParallelForward:
    """Computes the latest pairs and the masks after them, from tensors in place.

    Attributes:
        window: the most pairs that it computes; those computed before are left out.
    """

    head: PEagleHead
    pool: KVCache
    layout: DraftLayout
    window: int

    def __call__(self, inputs: DecodeInputs) -> ForwardOutputs:
        """Return the logits of the first `inputs.rows` drafted positions of each request."""
        rows = self.lay_out(inputs)
        normed, _ = forward_committed(self.head, self.pool, rows)
        drafting = normed.view(rows.batch_size, rows.rows, -1)[:, -inputs.rows :]
        return ForwardOutputs(self.head.logits(drafting.flatten(0, 1)))

    def lay_out(self, inputs: DecodeInputs) -> ForwardInputs:
        """Lay out pairs and masks, and count the pairs as computed."""
        layout, table, ring = self.layout, self.layout.table, self.layout.ring
        assert ring is not None
        batch = inputs.gather(table)
        pairs = self.window if inputs.committed is None else inputs.committed
        count = pairs + inputs.rows - 1
        rows = table.window_rows(batch, -pairs, count, layout.progress.first_missing)
        layout.progress.write_first_missing(batch, batch.lengths)
        is_mask = (table.offsets(count) >= pairs).repeat(batch.size)
        pair = layout.committed(rows)
        assert pair.hidden is not None
        masks = self.head.mask_hidden.to(pair.hidden.dtype)
        return ForwardInputs(
            pair.ids.masked_fill(is_mask, self.head.mask_token_id),
            pair.positions,
            pair.layout,
            pair.slot_mapping,
            torch.where(is_mask[:, None], masks, pair.hidden),
        )


class ParallelDrafter(ModelDrafter):
    """Drafts with a head that needs no drafted token for the next one.

    Args:
        graphs: runs `forward`.
        max_steps: drafted positions of the widest draft; the forward scores as many for each.
        topk: of every draft shape that is a tree.
    """

    def __init__(
        self,
        forward: ParallelForward,
        sampler: Sampler,
        graphs: GraphCache,
        max_steps: int,
        topk: int,
    ) -> None:
        layout, head = forward.layout, forward.head
        super().__init__(head, forward.pool, layout, sampler, graphs, forward.window, topk)
        self._max_steps = max_steps
        self._tokens = BlockTokens(layout.table, sampler, topk, head.draft_to_target)

    def draft(self, batch: DecodeBatch, sampling: SamplingBatch, shape: DraftShape) -> Draft:
        pending = self._pending.catch_up(batch, self._required_rows(batch))
        inputs = DecodeInputs(
            batch.req_indices,
            batch.longest,
            self._max_steps,
            batch=batch,
            committed=None if self._graphs.uses_graphs else pending,
        )
        outputs = self._graphs.run(ForwardKind.BLOCK, inputs)
        return self._tokens.choose(batch, sampling, shape, outputs)
