"""Drafting one token after the other, with a language model or a head over hidden states."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specdecode_engine.batch.request_table import RequestTable
from specdecode_engine.batch.shapes import (
    DraftShape,
    ForwardKind,
    ForwardShape,
    ForwardWidths,
    StepSizes,
    token_forwards,
)
from specdecode_engine.graphs.cache import GraphCache
from specdecode_engine.model.drafts.draft_config import DraftConfig
from specdecode_engine.model.drafts.draft_head import DraftHead
from specdecode_engine.model.forward import DecodeForward, draft_forwards
from specdecode_engine.model.kv.draft_scratch import DraftScratch
from specdecode_engine.model.kv.kv_cache import KVCache, kv_bytes
from specdecode_engine.model.target.language_model import LanguageModel
from specdecode_engine.sampling.sampler import Sampler
from specdecode_engine.schedule.limits import Limits
from specdecode_engine.speculate.draft_layout import DraftLayout
from specdecode_engine.speculate.draft_state import DraftKvProgress
from specdecode_engine.speculate.drafter import Drafter
from specdecode_engine.speculate.model_drafter import ModelDrafter
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
class TokenByToken(DraftMethod):
    """STANDALONE, EAGLE, EAGLE-3, MTP: a forward over missing rows, then one for each level."""

    head: type[DraftHead[Any]] | None = None

    def forwards(
        self, sizes: StepSizes, shape: DraftShape, batch_size: int
    ) -> Iterator[ForwardShape]:
        return token_forwards(shape, batch_size, sizes.max_path_length)

    def widths(self, draft: DraftConfig) -> Mapping[ForwardKind, ForwardWidths]:
        widths = ForwardWidths(draft.draft_vocab_size, draft.recurrent_width)
        return {ForwardKind.CATCH_UP: widths, ForwardKind.DRAFT_STEP: widths}

    def scratch_bytes(self, plan: DraftPlan, running: int) -> int:
        return running * kv_bytes(plan.config.layer_map, plan.sizes.scratch_rows, plan.dtype)

    def op_calls(self, needs: KernelNeeds, draft: DraftConfig, ops_in: OpsIn) -> Iterator[OpCall]:
        yield from draft_calls(needs, draft, ops_in, _attention_rows(needs))

    def wire(
        self,
        plan: DraftPlan,
        network: LoadedDraft,
        limits: Limits,
        table: RequestTable,
        target_pool: KVCache,
    ) -> DrafterWiring:
        assert isinstance(network, LanguageModel | DraftHead)
        pool, sizes = plan.make_cache(limits), plan.sizes
        scratch = DraftScratch(
            plan.config.layer_map,
            batch=plan.max_running,
            rows=sizes.scratch_rows,
            dtype=plan.dtype,
            device=plan.device,
        )
        progress = DraftKvProgress(table.num_rows, plan.device)
        layout = DraftLayout(network, table, progress, plan.make_ring())
        catch_up, draft_step = draft_forwards(network, pool, scratch)

        def make(sampler: Sampler, graphs: GraphCache) -> Drafter:
            bounds = sizes.max_path_length, sizes.topk, limits.chunk_tokens
            return ModelDrafter(network, pool, layout, sampler, graphs, *bounds)

        functions = {
            ForwardKind.CATCH_UP: DecodeForward(layout.catch_up, catch_up),
            ForwardKind.DRAFT_STEP: DecodeForward(layout.draft_step, draft_step),
        }
        return DrafterWiring(functions, make)


def _attention_rows(needs: KernelNeeds) -> Iterator[AttentionRows]:
    yield from draft_attention_rows(needs)
    for batch in needs.batch_sizes:
        for rows in range(1, needs.path_length + 1):
            yield AttentionRows("catching up", (rows,) * batch)
        for shape in needs.shapes:
            for step in range(1, shape.num_steps):
                level = (shape.topk,) * batch
                yield AttentionRows("draft steps", level, step * shape.topk)
