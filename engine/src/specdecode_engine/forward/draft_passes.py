"""A draft's passes of a decode round: over committed rows it lacks, and over drafted tokens.

Catching up writes to the draft's pages and hands out what follows the last row only; a step writes
to the scratch.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from specdecode_engine.forward.eagle_head import DraftHidden, EagleHead
from specdecode_engine.forward.kv_pool import DraftScratch, KvPool
from specdecode_engine.forward.kv_view import KvView, PagedView, ScratchView
from specdecode_engine.forward.llama import Llama
from specdecode_engine.forward.passes import PassFunction, PassInputs, PassOutputs
from specdecode_engine.graph_plan.passes import PassKind


def model_passes(
    model: Llama, pool: KvPool, scratch: DraftScratch
) -> Mapping[PassKind, PassFunction]:
    """Passes of a language model that drafts."""
    return {
        PassKind.CATCH_UP: _ModelCatchUp(model, pool),
        PassKind.STEP: _ModelStep(model, pool, scratch),
    }


def head_passes(
    head: EagleHead, pool: KvPool, scratch: DraftScratch
) -> Mapping[PassKind, PassFunction]:
    """Passes of an EAGLE head: `hidden` is features to catch up on, then the parents' output."""
    return {
        PassKind.CATCH_UP: _HeadCatchUp(head, pool),
        PassKind.STEP: _HeadStep(head, pool, scratch),
    }


@dataclass(frozen=True, slots=True, eq=False)
class _ModelCatchUp:
    model: Llama
    pool: KvPool

    def __call__(self, inputs: PassInputs) -> PassOutputs:
        view = _paged(self.pool, inputs)
        hidden = self.model.forward(inputs.ids, inputs.positions, view).last
        return PassOutputs(self.model.logits(_last_rows(hidden, inputs)))


@dataclass(frozen=True, slots=True, eq=False)
class _ModelStep:
    model: Llama
    pool: KvPool
    scratch: DraftScratch

    def __call__(self, inputs: PassInputs) -> PassOutputs:
        view = _scratch(self.pool, self.scratch, inputs)
        hidden = self.model.forward(inputs.ids, inputs.positions, view).last
        return PassOutputs(self.model.logits(hidden))


@dataclass(frozen=True, slots=True, eq=False)
class _HeadCatchUp:
    head: EagleHead
    pool: KvPool

    def __call__(self, inputs: PassInputs) -> PassOutputs:
        assert inputs.hidden is not None
        hidden = self.head.fuse(inputs.hidden)
        out = self.head.forward(inputs.ids, hidden, inputs.positions, _paged(self.pool, inputs))
        normed, recurrent = (_last_rows(rows, inputs) for rows in (out.normed, out.recurrent))
        return _scored(self.head, DraftHidden(normed, recurrent))


@dataclass(frozen=True, slots=True, eq=False)
class _HeadStep:
    head: EagleHead
    pool: KvPool
    scratch: DraftScratch

    def __call__(self, inputs: PassInputs) -> PassOutputs:
        assert inputs.hidden is not None
        view = _scratch(self.pool, self.scratch, inputs)
        out = self.head.forward(inputs.ids, inputs.hidden, inputs.positions, view)
        return _scored(self.head, out)


def _scored(head: EagleHead, out: DraftHidden) -> PassOutputs:
    return PassOutputs(head.logits(out.normed), out.recurrent)


def _last_rows(rows: Tensor, inputs: PassInputs) -> Tensor:
    """From [B * n, width] to each sequence's last row [B, width]."""
    return rows.view(inputs.batch_size, inputs.rows, -1)[:, -1]


def _paged(pool: KvPool, inputs: PassInputs) -> KvView:
    assert inputs.kv_rows is not None
    return PagedView(pool, inputs.kv_rows, inputs.layout)


def _scratch(pool: KvPool, scratch: DraftScratch, inputs: PassInputs) -> KvView:
    return ScratchView(pool, scratch, inputs.first, inputs.layout, inputs.mask)
