"""Lays out the rows of a draft's forwards, from tensors that stay in place.

Row i of a language model's KV belongs to token i, as in the target, so L computed tokens and a
bonus token need L + 1 rows. Row i of an EAGLE head consumes the pair (hidden state of position i,
token i + 1) and predicts token i + 2, so they need L rows. Rotary positions are row numbers in the
request's table of the draft, and rows lie under the target's pages.
"""

import torch
from torch import Tensor

from specdecode_engine.batch.decode_inputs import DecodeInputs
from specdecode_engine.batch.request_table import DecodeBatch, RequestTable, Rows
from specdecode_engine.batch.rotary_tables import RotaryOffsets
from specdecode_engine.model.forward import DraftNetwork, ForwardInputs
from specdecode_engine.model.target.language_model import LanguageModel
from specdecode_engine.speculate.draft_state import DraftKvProgress, HiddenStateRing
from specdecode_kernels import AttentionMetadata


class DraftLayout:
    """Lays out the rows of a language model or an EAGLE head.

    Args:
        ring: for an EAGLE head, the newest aux hidden states of the target.
    """

    def __init__(
        self,
        network: DraftNetwork,
        table: RequestTable,
        progress: DraftKvProgress,
        ring: HiddenStateRing | None,
    ) -> None:
        self.table = table
        self.progress = progress
        self.ring = ring
        self.rotary = RotaryOffsets(network.rotary_limits, table.num_rows, table.device)
        self.lookahead = 0 if ring is None else 1
        # Rows that a draft row sees beyond the computed tokens: 1 if the bonus token has its own.
        self.bonus_rows = 1 - self.lookahead
        # [draft_vocab] i64, if the draft's vocabulary is not the target's
        self.target_ids = None if isinstance(network, LanguageModel) else network.draft_to_target
        self._prefix: tuple[DecodeBatch, Tensor, AttentionMetadata] | None = None

    def catch_up(self, inputs: DecodeInputs) -> ForwardInputs:
        """Lay out the last `inputs.rows` rows up to the bonus token's; they count as computed then.

        Rows that are computed already are left out: the first missing one is computed repeatedly.
        """
        batch = inputs.gather(self.table)
        rows = self.window_rows(batch, inputs.rows, inputs.rows)
        self.progress.write_first_missing(batch, self._end(batch))
        return self.committed(rows)

    def draft_step(self, inputs: DecodeInputs) -> ForwardInputs:
        """Lay out drafted tokens, in ids of the draft, after the prefix that all of them see."""
        assert inputs.tokens is not None
        batch = inputs.gather(self.table)
        positions, layout = self._prefix_of(batch, inputs.rows)
        ids = self.to_target(inputs.tokens)
        return ForwardInputs(
            ids.flatten(),
            positions + inputs.first // inputs.rows,
            layout,
            hidden=of_parents(inputs),
            mask=None if inputs.rows == 1 else self._scratch_mask(inputs.parents, ids),
            first=inputs.first,
        )

    def to_target(self, ids: Tensor) -> Tensor:
        """Map ids of the draft's vocabulary to the target's."""
        return ids if self.target_ids is None else self.target_ids[ids]

    def window_rows(self, batch: DecodeBatch, pending: int, count: int) -> Rows:
        """Lay out the first `count` of the last `pending` rows, without those already computed."""
        start = self.bonus_rows - pending
        return self.table.window_rows(batch, start, count, self.progress.first_missing)

    def committed(self, rows: Rows, hidden: Tensor | None = None) -> ForwardInputs:
        """Return the inputs of committed rows.

        Args:
            hidden: the rows' aux hidden states, if the head reads others than the ring's.
        """
        positions = rows.positions
        if self.ring is not None and hidden is None:
            hidden = self.ring.read(rows.req_indices, positions)
        token_positions = positions + 1 if self.lookahead else positions
        ids = self.table.tokens_at(rows.req_indices, token_positions)
        rotary = self.rotary.rows(rows.req_indices, positions)
        return ForwardInputs(ids, rotary, rows.layout, rows.slot_mapping, hidden)

    def _scratch_mask(self, parents: tuple[Tensor, ...], ids: Tensor) -> Tensor:
        """Mark the scratch rows that each node of ids [B, k] sees: [B, k, levels * k] bool."""
        places = self.table.offsets(ids.shape[1])
        return scratch_mask(parents, (places[:, None] == places).expand(len(ids), -1, -1))

    def _end(self, batch: DecodeBatch) -> Tensor:
        """Rows that a draft needs [B] i64."""
        return batch.lengths + 1 if self.bonus_rows else batch.lengths

    def _prefix_of(self, batch: DecodeBatch, rows: int) -> tuple[Tensor, AttentionMetadata]:
        """Rotary positions after the prefix, and the rows of the pool that each drafted row sees.

        They are the same in all draft steps of a step.
        """
        if self._prefix is None or self._prefix[0] is not batch:
            prefix = _for_each_row(self._end(batch), rows)
            positions = self.rotary.rows(_for_each_row(batch.req_indices, rows), prefix)
            self._prefix = (batch, positions, self.table.prefix_layout(batch, prefix, rows))
        return self._prefix[1:]


def _for_each_row(values: Tensor, count: int) -> Tensor:
    """Repeat the value of each sequence [B] for its `count` rows: [B * count]."""
    return values if count == 1 else values.repeat_interleave(count)


def of_parents(inputs: DecodeInputs) -> Tensor | None:
    """What the parent of each drafted token left, [B * k, width]; None where nothing is read."""
    hidden = inputs.hidden
    if hidden is None or inputs.rows == 1:
        return hidden
    if not inputs.parents:
        return hidden.repeat_interleave(inputs.rows, dim=0)
    parents = inputs.parents[-1]
    by_level = hidden.view(*parents.shape, -1)
    index = parents[:, :, None].expand(-1, -1, by_level.shape[2])
    return by_level.gather(1, index).flatten(0, 1)


def scratch_mask(parents: tuple[Tensor, ...], own: Tensor) -> Tensor:
    """Mark the scratch rows that each node of a level sees, its ancestors and itself.

    Rows are numbered level by level, k in each.

    Args:
        parents: [B, k] i64 each, of the levels from the second to this one.
        own: [B, k, k] bool, the identity.

    Returns:
        [B, k, levels * k] bool.
    """
    mask = own
    for level in parents:
        index = level[:, :, None].expand(-1, -1, mask.shape[2])
        mask = torch.cat([mask.gather(1, index), own], dim=2)
    return mask
