"""A tiny target over a poisoned pool with running sequences, and no engine around them."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from checks.lossless.poison import poison
from specdecode_engine.batch.decode_inputs import DecodeInputs
from specdecode_engine.batch.request_table import DecodeBatch, RequestTable
from specdecode_engine.batch.rotary_tables import RotaryOffsets
from specdecode_engine.batch.shapes import ForwardKind, ForwardShape, ForwardWidths
from specdecode_engine.batch.staging import StagingBuffer
from specdecode_engine.graphs.buffers import BufferSpec, GraphBuffers
from specdecode_engine.graphs.cuda_graph import StaticGraph
from specdecode_engine.model.forward import DecodeForward, TargetForward, VerifyLayout
from specdecode_engine.model.kv.kv_cache import KVCache
from specdecode_engine.model.kv.kv_views import PagedView
from specdecode_engine.model.target.config import AuxHiddenStates
from specdecode_engine.model.target.llama import Llama
from specdecode_engine.speculate.tree import link
from specdecode_kernels import TORCH

PAGE_SIZE, PAGES_PER_SLOT, SLOTS = 4, 8, 6
LENGTHS = (5, 9, 1, 13)


@dataclass(frozen=True)
class Bench:
    """Sequences of LENGTHS computed tokens in slots 1 to 4, and the target's forward over them."""

    target: Llama
    pool: KVCache
    table: RequestTable
    function: DecodeForward

    def batch(self, size: int) -> DecodeBatch:
        """The first `size` sequences."""
        req_indices = list(range(1, size + 1))
        return self.table.decode_batch(req_indices, LENGTHS[:size], torch.tensor(req_indices))

    def chain(self, size: int, rows: int) -> DecodeInputs:
        """Verify the bonus token and what follows it in the table."""
        batch = self.batch(size)
        positions = self.table.next_positions(batch, rows - 1)
        tokens = self.table.tokens_at(batch.req_indices[:, None], positions)
        if rows == 1:
            return DecodeInputs(batch.req_indices, batch.longest, rows, batch=batch)
        return DecodeInputs(batch.req_indices, batch.longest, rows, tokens, batch=batch)

    def tree(self, size: int, parents: tuple[int, ...]) -> DecodeInputs:
        """Verify a tree of the same form after every bonus token."""
        batch, nodes = self.batch(size), len(parents)
        tree = link(TORCH, torch.tensor([parents] * size), max(nodes - 1, 1))
        tokens = (torch.arange(size * (nodes - 1)) * 7).view(size, -1) % 97
        return DecodeInputs(
            batch.req_indices,
            batch.longest,
            nodes,
            tokens,
            depths=tree.depths,
            mask=tree.ancestry,
            batch=batch,
        )

    def rows_of(self, inputs: DecodeInputs) -> set[int]:
        """The rows of the pool that a forward over these inputs writes."""
        laid = self.function.lay_out(inputs)
        assert laid.slot_mapping is not None
        return set(laid.slot_mapping.tolist())

    def spec(self) -> BufferSpec:
        """What sizes the buffers."""
        return BufferSpec(self.widths(), PAGES_PER_SLOT, PAGE_SIZE, torch.float32)

    def buffers(self, *shapes: ForwardShape) -> GraphBuffers:
        """What graphs of these shapes share."""
        return GraphBuffers(self.spec(), shapes, torch.device("cpu"))

    def graph(self, shape: ForwardShape, *others: ForwardShape) -> StaticGraph:
        """A graph on buffers that suffice for other shapes too."""
        return StaticGraph(shape, self.function, self.buffers(shape, *others))

    def widths(self) -> Mapping[ForwardKind, ForwardWidths]:
        """The target returns the hidden states of two layers."""
        hidden = self.target.embedding.shape[1]
        return {ForwardKind.VERIFY: ForwardWidths(logits=97, hidden_out=2 * hidden)}

    def cells(self) -> Tensor:
        """A copy of the pool: [rows, 2 * layers * heads * dim], NaN where nothing was written."""
        (group,) = self.pool.groups
        both = torch.stack((group.k, group.v))
        return both.permute(2, 0, 1, 3, 4).flatten(1).clone()


@pytest.fixture
def bench(checkpoints) -> Bench:
    target = Llama.load(checkpoints.target, dtype=torch.float32, device=torch.device("cpu"))
    pool = KVCache(
        target.config.layer_map,
        SLOTS * PAGES_PER_SLOT + 1,
        PAGE_SIZE,
        torch.float32,
        torch.device("cpu"),
    )
    poison(pool)
    table = RequestTable(SLOTS, 40, PAGES_PER_SLOT, PAGE_SIZE, StagingBuffer(torch.device("cpu")))
    generator = torch.Generator().manual_seed(3)
    pages = (torch.randperm(SLOTS * PAGES_PER_SLOT, generator=generator) + 1).tolist()
    for req_index, length in enumerate(LENGTHS, start=1):
        table.open(req_index, [(req_index * 13 + place * 5) % 97 for place in range(30)])
        table.write_pages(
            [(req_index, pages[req_index * PAGES_PER_SLOT : (req_index + 1) * PAGES_PER_SLOT])]
        )
        rows = table.span_rows(table.stage_spans([(req_index, 0, length)]))
        ids = table.tokens_at(rows.req_indices, rows.positions)
        target.forward(ids, rows.positions, PagedView(pool, rows.slot_mapping, rows.layout))
        table.set_computed(req_index, length)
    rotary = RotaryOffsets(target.rotary_limits, SLOTS, torch.device("cpu"))
    verify = TargetForward(target, pool, AuxHiddenStates(layers=(0, 2)))
    return Bench(target, pool, table, DecodeForward(VerifyLayout(table, rotary), verify))
