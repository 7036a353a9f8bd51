"""Forward passes as functions of tensors alone, so that each can be captured once and replayed.

The forwards of a decode step are the target's over bonus tokens and drafted ones, and two of the
draft: over committed rows that its KV lacks, and over drafted tokens. A draft is a language model,
or an EAGLE head that also reads hidden states: the target's for committed rows, its own output for
the parent of a drafted token.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specdecode_engine.batch.decode_inputs import DecodeInputs
from specdecode_engine.batch.request_table import RequestTable
from specdecode_engine.batch.rotary_tables import RotaryOffsets
from specdecode_engine.model.adapters.pool import AdapterPool
from specdecode_engine.model.drafts.draft_head import DraftHead
from specdecode_engine.model.kv.delta_states import DeltaStates
from specdecode_engine.model.kv.draft_scratch import DraftScratch
from specdecode_engine.model.kv.kv_cache import KVCache
from specdecode_engine.model.kv.kv_views import KVView, PagedView, ScratchView
from specdecode_engine.model.layers.layers import widened
from specdecode_engine.model.routed_experts import RoutedExperts, forward_target
from specdecode_engine.model.target.config import AuxHiddenStates
from specdecode_engine.model.target.language_model import LanguageModel
from specdecode_kernels import AttentionMetadata

DraftNetwork = LanguageModel | DraftHead[Any]


class ForwardInputs(NamedTuple):
    """All that changes between two runs of one pass: n rows for each of B sequences.

    What is None depends on the pass alone, never on the run.
    """

    ids: Tensor  # [B * n] i64
    positions: Tensor  # [B * n] i64, rows of the rotary tables
    layout: AttentionMetadata  # n query rows for each sequence
    slot_mapping: Tensor | None = None  # [B * n] i64, rows of the pool; None for the scratch
    hidden: Tensor | None = None  # [B * n, width]: what each row reads besides its token
    mask: Tensor | None = None  # [B, n, seen] bool: a tree's ancestors
    first: int = 0  # scratch row of the first row
    node_rows: Tensor | None = None  # [B, n] i64: the row of each node, where not all have one
    req_indices: Tensor | None = None  # [B * n] i64, rows of the request table, for the target

    @property
    def batch_size(self) -> int:
        return len(self.layout.qo_lens)

    @property
    def rows(self) -> int:
        return self.layout.qo_lens[0]


class ForwardOutputs(NamedTuple):
    """What a pass leaves, good until the next pass of its kind; m is n, or 1 after catching up."""

    logits: Tensor  # [B * m, columns] of the model's type or wider; f32 or f64 once widened
    hidden: Tensor | None = None  # [B * m, width]: aux hidden states, or what the next row reads
    best: "BestTokens | None" = None  # of a draft, from a CUDA graph or of a block's chain
    ids: Tensor | None = None  # [B * m, columns] i64, tokens that are scored; None: all in order

    def widened(self) -> "ForwardOutputs":
        """Give the logits the type in which sampling computes."""
        return self._replace(logits=widened(self.logits))


class BestTokens(NamedTuple):
    """The likeliest tokens of each row, in order: ids of the vocabulary, log-probabilities."""

    scores: Tensor  # [..., topk] f32
    ids: Tensor  # [..., topk] i64

    @classmethod
    def of(cls, scores: Tensor, count: int, ids: Tensor | None = None) -> "BestTokens":
        """Take the best `count` of log-probabilities [..., columns] f32; NaN counts as impossible.

        Args:
            ids: [..., columns] i64, the tokens of the columns; None: they are the columns.
        """
        values, places = torch.topk(torch.nan_to_num(scores, nan=-torch.inf), count, dim=-1)
        return cls(values, places if ids is None else ids.gather(-1, places))


ForwardFunction = Callable[[ForwardInputs], ForwardOutputs]
"""A model with its cache: writes the rows' keys and values; reads and writes nothing else."""

DecodeFunction = Callable[[DecodeInputs], ForwardOutputs]
"""A forward of a decode step with the layout of its rows."""


@dataclass(frozen=True, slots=True, eq=False)
class DecodeForward:
    """Lays out the rows of a forward, then computes it."""

    lay_out: Callable[[DecodeInputs], ForwardInputs]
    compute: ForwardFunction

    def __call__(self, inputs: DecodeInputs) -> ForwardOutputs:
        return self.compute(self.lay_out(inputs))


@dataclass(frozen=True, slots=True, eq=False)
class VerifyLayout:
    """Arranges the bonus tokens and their draft as chains, or as the draft's trees."""

    table: RequestTable
    rotary: RotaryOffsets

    def __call__(self, inputs: DecodeInputs) -> ForwardInputs:
        table, batch = self.table, inputs.gather(self.table)
        ids = table.tokens_at(batch.req_indices, batch.lengths).unsqueeze(1)
        if inputs.tokens is not None:
            ids = torch.cat([ids, inputs.tokens], dim=1)
        if inputs.depths is not None:
            rows = table.node_rows(batch, inputs.depths)
        else:
            rows = table.window_rows(batch, 0, inputs.rows)
        ids, verify, node_rows = ids.flatten(), inputs.verify, None
        if verify is None and inputs.verified is not None:
            verify = inputs.divided_rows()
        if verify is not None:
            ids, rows, node_rows = ids[verify.nodes], verify.select(rows), verify.rows
        return ForwardInputs(
            ids,
            self.rotary.rows(rows.req_indices, rows.positions),
            rows.layout,
            rows.slot_mapping,
            mask=inputs.mask,
            node_rows=node_rows,
            req_indices=rows.req_indices,
        )


@dataclass(frozen=True, slots=True, eq=False)
class TargetForward:
    """Logits and aux hidden states of every node: a chain or, with a mask, a tree per sequence."""

    target: LanguageModel
    pool: KVCache
    aux_spec: AuxHiddenStates
    routed: RoutedExperts | None = None
    states: DeltaStates | None = None
    adapters: AdapterPool | None = None

    def __call__(self, inputs: ForwardInputs) -> ForwardOutputs:
        if self.adapters is None:
            return self._compute(self.target, inputs)
        assert inputs.req_indices is not None
        with self.adapters.applied(inputs.req_indices) as target:
            return self._compute(target, inputs)

    def _compute(self, target: LanguageModel, inputs: ForwardInputs) -> ForwardOutputs:
        assert inputs.slot_mapping is not None
        nodes = inputs.mask, inputs.node_rows
        slots, delta = inputs.slot_mapping, None
        if self.states is not None:
            assert inputs.req_indices is not None
            delta = self.states.view(inputs.req_indices, inputs.layout, 0, inputs.mask)
        view = PagedView(self.pool, slots, inputs.layout, *nodes, delta=delta)
        rows = inputs.ids, inputs.positions, view, self.aux_spec
        hidden, aux = forward_target(target, self.routed, slots, *rows)
        return ForwardOutputs(target.logits(hidden), aux)


def draft_forwards(
    network: DraftNetwork, pool: KVCache, scratch: DraftScratch
) -> tuple[ForwardFunction, ForwardFunction]:
    """Bind catching up and draft steps to the draft's pages and its scratch."""

    def catch_up(inputs: ForwardInputs) -> ForwardOutputs:
        """Write to the pages; the outputs are those of each sequence's last row."""
        normed, recurrent = forward_committed(network, pool, inputs)
        recurrent = None if recurrent is None else _last_rows(recurrent, inputs)
        return ForwardOutputs(network.logits(_last_rows(normed, inputs)), recurrent)

    def draft_step(inputs: ForwardInputs) -> ForwardOutputs:
        """Write to the scratch."""
        view = ScratchView(pool, scratch, inputs.first, inputs.layout, inputs.mask)
        normed, recurrent = _forward(network, inputs, inputs.hidden, view)
        return ForwardOutputs(network.logits(normed), recurrent)

    return catch_up, draft_step


def forward_committed(
    network: DraftNetwork, pool: KVCache, inputs: ForwardInputs
) -> tuple[Tensor, Tensor | None]:
    """Run committed rows and write their KV to the draft's pages.

    Args:
        inputs: `hidden` are the rows' aux hidden states, for a head.

    Returns:
        Hidden states [rows, hidden] that `logits` takes, and those that a head reads next.
    """
    hidden, view = _read_committed(network, pool, inputs)
    return _forward(network, inputs, hidden, view)


def store_committed(network: DraftNetwork, pool: KVCache, inputs: ForwardInputs) -> None:
    """Write the KV of committed rows to the draft's pages, as `forward_committed` does."""
    hidden, view = _read_committed(network, pool, inputs)
    if isinstance(network, LanguageModel):
        network.store_kv(inputs.ids, inputs.positions, view)
    else:
        assert hidden is not None
        network.store_kv(inputs.ids, hidden, inputs.positions, view)


def _read_committed(
    network: DraftNetwork, pool: KVCache, inputs: ForwardInputs
) -> tuple[Tensor | None, PagedView]:
    """Return the hidden states that committed rows read, and where their KV belongs."""
    assert inputs.slot_mapping is not None
    hidden = inputs.hidden
    if hidden is not None and not isinstance(network, LanguageModel):
        hidden = network.fuse(hidden)
    return hidden, PagedView(pool, inputs.slot_mapping, inputs.layout)


def _forward(
    network: DraftNetwork, inputs: ForwardInputs, hidden: Tensor | None, view: KVView
) -> tuple[Tensor, Tensor | None]:
    if isinstance(network, LanguageModel):
        return network.forward(inputs.ids, inputs.positions, view)
    assert hidden is not None
    return network.forward(inputs.ids, hidden, inputs.positions, view)


def _last_rows(rows: Tensor, inputs: ForwardInputs) -> Tensor:
    """From [B * n, width] to each sequence's last row [B, width]."""
    return rows.view(inputs.batch_size, inputs.rows, -1)[:, -1]
