"""A draft's forwards: over committed rows that its KV lacks, and over drafted tokens.

A draft is a language model, or an EAGLE head that also reads hidden states: the target's for
committed rows, its own output for the parent of a drafted token.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from specdecode_engine.batch.shapes import ForwardKind
from specdecode_engine.model.eagle_head import EagleHead
from specdecode_engine.model.forward import ForwardFunction, ForwardInputs, ForwardOutputs
from specdecode_engine.model.kv_cache import DraftScratch, KVCache
from specdecode_engine.model.kv_views import KVView, PagedView, ScratchView
from specdecode_engine.model.llama import Llama

DraftNetwork = Llama | EagleHead


def draft_forwards(
    network: DraftNetwork, pool: KVCache, scratch: DraftScratch
) -> Mapping[ForwardKind, ForwardFunction]:
    """Bind the forwards of a decode step to the draft's pages and its scratch."""
    return {
        ForwardKind.CATCH_UP: _CatchUp(network, pool),
        ForwardKind.DRAFT_STEP: _Step(network, pool, scratch),
    }


def forward_committed(
    network: DraftNetwork, pool: KVCache, inputs: ForwardInputs
) -> tuple[Tensor, Tensor | None]:
    """Run committed rows and write their KV to the draft's pages.

    Args:
        inputs: `hidden` are the rows' aux hidden states, for a head.

    Returns:
        Hidden states [rows, hidden] that `logits` takes, and those that a head reads next.
    """
    assert inputs.slot_mapping is not None
    hidden = inputs.hidden
    if hidden is not None and not isinstance(network, Llama):
        hidden = network.fuse(hidden)
    return _forward(network, inputs, hidden, PagedView(pool, inputs.slot_mapping, inputs.layout))


@dataclass(frozen=True, slots=True, eq=False)
class _CatchUp:
    """Writes to the draft's pages; the outputs are those of each sequence's last row."""

    network: DraftNetwork
    pool: KVCache

    def __call__(self, inputs: ForwardInputs) -> ForwardOutputs:
        normed, recurrent = forward_committed(self.network, self.pool, inputs)
        recurrent = None if recurrent is None else _last_rows(recurrent, inputs)
        return ForwardOutputs(self.network.logits(_last_rows(normed, inputs)), recurrent)


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """Writes to the scratch."""

    network: DraftNetwork
    pool: KVCache
    scratch: DraftScratch

    def __call__(self, inputs: ForwardInputs) -> ForwardOutputs:
        view = ScratchView(self.pool, self.scratch, inputs.first, inputs.layout, inputs.mask)
        normed, recurrent = _forward(self.network, inputs, inputs.hidden, view)
        return ForwardOutputs(self.network.logits(normed), recurrent)


def _forward(
    network: DraftNetwork, inputs: ForwardInputs, hidden: Tensor | None, view: KVView
) -> tuple[Tensor, Tensor | None]:
    if isinstance(network, Llama):
        return network.forward(inputs.ids, inputs.positions, view).last, None
    assert hidden is not None
    out = network.forward(inputs.ids, hidden, inputs.positions, view)
    return out.normed, out.recurrent


def _last_rows(rows: Tensor, inputs: ForwardInputs) -> Tensor:
    """From [B * n, width] to each sequence's last row [B, width]."""
    return rows.view(inputs.batch_size, inputs.rows, -1)[:, -1]
