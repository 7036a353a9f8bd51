"""Bytes of captured passes by table, for sizes of a published model: pruned and not.

Bytes are estimated by the engine's own cost model. "Everything" is what capturing every depth of
the table for every batch size takes, each with passes of its own, the way it is done elsewhere.
"""

from dataclasses import dataclass

from graphs.tables import NamedTable
from specdecode_engine.depth.ema import EmaDepth
from specdecode_engine.draft_shape import DraftShape
from specdecode_engine.graph_plan.costs import CostModel
from specdecode_engine.graph_plan.passes import PassKind, PassShape, PassWidths, passes_of
from specdecode_engine.graph_plan.plan import GraphSpace
from specdecode_engine.graph_plan.sizes import batch_sizes

# Llama 3.1 8B with an EAGLE-3 head of 32 000 tokens, bf16, 8192 tokens of context in pages of 16.
_HEAD = PassWidths(1, 4096, 14336, logits=32_000, hidden_in=3 * 4096, hidden_out=4096)
LLAMA_8B = CostModel(
    {
        PassKind.VERIFY: PassWidths(32, 4096, 14336, logits=128_256, hidden_out=3 * 4096),
        PassKind.CATCH_UP: _HEAD,
        PassKind.STEP: PassWidths(1, 4096, 14336, logits=32_000, hidden_in=4096, hidden_out=4096),
    },
    pages=512,
    itemsize=2,
)


@dataclass(frozen=True, slots=True)
class Saving:
    """What one table needs, and what capturing everything would take."""

    name: str
    pairs: int
    all_pairs: int
    passes: int
    all_passes: int
    num_bytes: int
    all_bytes: int

    @property
    def part(self) -> float:
        """Captured bytes to those of everything."""
        return self.num_bytes / self.all_bytes


def measure(named: NamedTable, topk: int = 1, model: CostModel = LLAMA_8B) -> Saving:
    """Plan for a table under the policy that may choose any of its candidates."""
    table = named.table
    shapes = {steps: DraftShape.of(steps, topk) for steps in table.candidates()}
    sizes = batch_sizes(named.max_running)
    window = max(shape.path_length for shape in shapes.values())
    space = GraphSpace(shapes, sizes, named.max_running, window)
    plan = space.plan(EmaDepth(table, table.candidates()[0], sizes))
    everything = [passes_of(shape, size, window) for shape in shapes.values() for size in sizes]
    flat = [one for passes in everything for one in passes]
    return Saving(
        name=named.name,
        pairs=len(plan.pairs),
        all_pairs=len(everything),
        passes=len(plan.passes()),
        all_passes=len(flat),
        num_bytes=model.total_bytes(plan.passes()),
        all_bytes=_unshared_bytes(model, flat),
    )


def _unshared_bytes(model: CostModel, passes: list[PassShape]) -> int:
    return model.shared_bytes(passes) + sum(model.of_pass(one).num_bytes for one in passes)
