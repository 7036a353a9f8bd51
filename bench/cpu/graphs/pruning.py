"""Graphs and their shared buffers by table, for the sizes of a published model: pruned and not.

"Everything" is what capturing every num_steps of the table for every batch size takes, each with
graphs of its own, the way it is done elsewhere.
"""

from dataclasses import dataclass
from functools import partial

import torch

from bench.cpu.graphs.tables import NamedTable
from specdecode_engine.adaptive.ema import EmaPolicy
from specdecode_engine.batch.shapes import (
    DraftShape,
    ForwardKind,
    ForwardWidths,
    forwards_of,
    token_forwards,
)
from specdecode_engine.graphs.buffers import BufferSpec
from specdecode_engine.graphs.plan import GraphSpace, batch_sizes

LLAMA_8B = BufferSpec(
    {
        ForwardKind.VERIFY: ForwardWidths(logits=128_256, hidden_out=3 * 4096),
        ForwardKind.CATCH_UP: ForwardWidths(32_000, hidden_out=4096),
        ForwardKind.DRAFT_STEP: ForwardWidths(32_000, hidden_out=4096),
    },
    pages=512,
    page_size=16,
    dtype=torch.bfloat16,
)
"""Llama 3.1 8B with an EAGLE-3 head of 32 000 tokens and 8192 tokens of context."""


@dataclass(frozen=True, slots=True)
class Saving:
    """What one table needs, and what capturing everything would take."""

    name: str
    pairs: int
    all_pairs: int
    graphs: int
    all_graphs: int
    shared_bytes: int
    all_shared_bytes: int

    @property
    def part(self) -> float:
        """Captured graphs to those of everything."""
        return self.graphs / self.all_graphs


def measure(named: NamedTable, topk: int = 1, spec: BufferSpec = LLAMA_8B) -> Saving:
    """Plan for a table under the policy that may choose any of its candidates."""
    table = named.table
    shapes = {steps: DraftShape.of(steps, topk) for steps in table.candidates()}
    sizes = batch_sizes(named.max_running)
    window = max(shape.path_length for shape in shapes.values())
    drafting = partial(token_forwards, window=window)
    space = GraphSpace(shapes, sizes, named.max_running, drafting)
    plan = space.plan(EmaPolicy(table, table.candidates()[0], sizes))
    everything = [forwards_of(shape, size, drafting) for shape in shapes.values() for size in sizes]
    flat = [one for forwards in everything for one in forwards]
    return Saving(
        name=named.name,
        pairs=len(plan.pairs),
        all_pairs=len(everything),
        graphs=len(plan.forwards()),
        all_graphs=len(flat),
        shared_bytes=spec.num_bytes(plan.forwards()),
        all_shared_bytes=spec.num_bytes(flat),
    )
