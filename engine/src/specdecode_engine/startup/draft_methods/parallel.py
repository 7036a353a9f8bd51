"""Drafting all tokens in one forward of an EAGLE-3 head."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from specdecode_engine.batch.request_table import RequestTable
from specdecode_engine.batch.shapes import (
    DraftShape,
    ForwardKind,
    ForwardShape,
    ForwardWidths,
    StepSizes,
)
from specdecode_engine.graphs.cache import GraphCache
from specdecode_engine.model.drafts.draft_config import DraftConfig
from specdecode_engine.model.drafts.peagle import PEagleHead
from specdecode_engine.model.kv.kv_cache import KVCache
from specdecode_engine.sampling.sampler import Sampler
from specdecode_engine.schedule.limits import Limits
from specdecode_engine.speculate.draft_layout import DraftLayout
from specdecode_engine.speculate.draft_state import DraftKvProgress
from specdecode_engine.speculate.drafter import Drafter
from specdecode_engine.speculate.parallel_drafter import ParallelDrafter, ParallelForward
from specdecode_engine.startup.draft_methods.method import (
    DrafterWiring,
    DraftMethod,
    DraftPlan,
    LoadedDraft,
)
from specdecode_engine.startup.kernel_needs import KernelNeeds
from specdecode_engine.startup.op_inputs import (
    AttentionRows,
    OpsIn,
    draft_attention_rows,
    draft_calls,
)
from specdecode_kernels import OpCall


@dataclass(frozen=True, slots=True)
class AtOnce(DraftMethod):
    """P-EAGLE: one forward over missing pairs and masks, whatever is verified of the tokens."""

    head: type[PEagleHead]
    drafts_blocks = True

    def forwards(
        self, sizes: StepSizes, shape: DraftShape, batch_size: int
    ) -> Iterator[ForwardShape]:
        yield ForwardShape(ForwardKind.BLOCK, batch_size, sizes.max_steps)

    def widths(self, draft: DraftConfig) -> Mapping[ForwardKind, ForwardWidths]:
        return {ForwardKind.BLOCK: ForwardWidths(draft.draft_vocab_size)}

    def scratch_bytes(self, plan: DraftPlan, running: int) -> int:
        # Logits of all tokens, and their scores.
        return running * plan.sizes.max_steps * plan.config.draft_vocab_size * 4 * 2

    def op_calls(self, needs: KernelNeeds, draft: DraftConfig, ops_in: OpsIn) -> Iterator[OpCall]:
        counts = sorted({shape.num_steps for shape in needs.shapes if shape.num_steps})
        yield from draft_calls(needs, draft, ops_in, _attention_rows(needs), counts)

    def wire(
        self,
        plan: DraftPlan,
        network: LoadedDraft,
        limits: Limits,
        table: RequestTable,
        target_pool: KVCache,
    ) -> DrafterWiring:
        assert isinstance(network, PEagleHead)
        sizes, progress = plan.sizes, DraftKvProgress(table.num_rows, plan.device)
        layout = DraftLayout(network, table, progress, plan.make_ring())
        pool = plan.make_cache(limits)
        forward = ParallelForward(network, pool, layout, sizes.max_path_length)

        def make(sampler: Sampler, graphs: GraphCache) -> Drafter:
            return ParallelDrafter(forward, sampler, graphs, sizes.max_steps, sizes.topk)

        return DrafterWiring({ForwardKind.BLOCK: forward}, make)


def _attention_rows(needs: KernelNeeds) -> Iterator[AttentionRows]:
    yield from draft_attention_rows(needs)
    masks = max(shape.num_steps for shape in needs.shapes) - 1
    for batch in needs.batch_sizes:
        for pairs in range(1, needs.path_length + 1):
            yield AttentionRows("drafts", (pairs + masks,) * batch)
