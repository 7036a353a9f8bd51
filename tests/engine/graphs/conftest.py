"""A tiny target over a poisoned pool with running sequences, and no engine around them."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from specdecode_engine.forward.eagle_head import Capture
from specdecode_engine.forward.kv_pool import KvPool
from specdecode_engine.forward.kv_view import PagedView
from specdecode_engine.forward.llama import Llama
from specdecode_engine.forward.passes import PassInputs
from specdecode_engine.forward.target_pass import TargetPass
from specdecode_engine.graph_plan.passes import PassKind, PassShape, PassWidths
from specdecode_engine.graphs.inputs import InputBuffers
from specdecode_engine.graphs.outputs import OutputBuffers
from specdecode_engine.graphs.static_runner import StaticRunner
from specdecode_engine.slots import DecodeBatch, SlotTable, Span
from specdecode_engine.speculate.tree import link

PAGE_SIZE, PAGES_PER_SLOT, SLOTS = 4, 8, 6
LENGTHS = (5, 9, 1, 13)


@dataclass(frozen=True)
class Bench:
    """Sequences of LENGTHS computed tokens in slots 1 to 4, and the target's pass over them."""

    target: Llama
    pool: KvPool
    table: SlotTable
    function: TargetPass

    def batch(self, size: int) -> DecodeBatch:
        """The first `size` sequences."""
        return self.table.decode_batch(range(1, size + 1), LENGTHS[:size])

    def chain(self, size: int, rows: int) -> PassInputs:
        """Verify the bonus token and what stands behind it in the table."""
        batch = self.batch(size)
        laid = self.table.window_rows(batch, batch.lengths, rows)
        ids = self.table.tokens_at(laid.slots, laid.positions)
        return PassInputs(ids, laid.positions, laid.layout, laid.kv_rows)

    def tree(self, size: int, parents: tuple[int, ...]) -> PassInputs:
        """Verify a tree of the same form behind every bonus token."""
        batch = self.batch(size)
        tree = link(torch.tensor([parents] * size), max(len(parents) - 1, 1))
        laid = self.table.node_rows(batch, tree.depths)
        ids = (torch.arange(size * len(parents)) * 7) % 97
        return PassInputs(ids, laid.positions, laid.layout, laid.kv_rows, mask=tree.ancestry)

    def buffers(self, *shapes: PassShape) -> tuple[InputBuffers, OutputBuffers]:
        """What runners of these shapes share."""
        widths = self.widths()
        dtype, device = torch.float32, torch.device("cpu")
        inputs = InputBuffers(shapes, widths, PAGES_PER_SLOT, PAGE_SIZE, dtype, device)
        return inputs, OutputBuffers(shapes, widths, dtype, device)

    def runner(self, shape: PassShape, *others: PassShape) -> StaticRunner:
        """A runner on buffers that suffice for other shapes too."""
        return StaticRunner(shape, self.function, *self.buffers(shape, *others))

    def widths(self) -> Mapping[PassKind, PassWidths]:
        """The target hands out the features of two layers."""
        hidden = self.target.embedding.shape[1]
        return {PassKind.VERIFY: PassWidths(3, hidden, 96, logits=97, hidden_out=2 * hidden)}

    def cells(self) -> Tensor:
        """A copy of the pool: [rows, 2 * layers * heads * dim], NaN where nothing was written."""
        both = torch.stack((self.pool.k, self.pool.v))
        return both.permute(2, 0, 1, 3, 4).flatten(1).clone()


@pytest.fixture
def bench(checkpoints) -> Bench:
    target = Llama.load(checkpoints.target, dtype=torch.float32, device=torch.device("cpu"))
    decoder = target.config.decoder
    pool = KvPool(
        target.config.num_hidden_layers,
        SLOTS * PAGES_PER_SLOT + 1,
        PAGE_SIZE,
        decoder.num_key_value_heads,
        decoder.head_dim,
        torch.float32,
        torch.device("cpu"),
        poison=True,
    )
    table = SlotTable(SLOTS, 40, PAGES_PER_SLOT, PAGE_SIZE, torch.device("cpu"))
    generator = torch.Generator().manual_seed(3)
    pages = (torch.randperm(SLOTS * PAGES_PER_SLOT, generator=generator) + 1).tolist()
    for slot, length in enumerate(LENGTHS, start=1):
        table.open(slot, [(slot * 13 + place * 5) % 97 for place in range(30)])
        table.write_pages([(slot, pages[slot * PAGES_PER_SLOT : (slot + 1) * PAGES_PER_SLOT])])
        rows = table.span_rows([Span(slot, 0, length)])
        ids = table.tokens_at(rows.slots, rows.positions)
        target.forward(ids, rows.positions, PagedView(pool, rows.kv_rows, rows.layout))
        table.set_computed(slot, length)
    return Bench(target, pool, table, TargetPass(target, pool, Capture(layers=(0, 2))))
