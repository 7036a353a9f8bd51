"""Drafting with layers that read the target's keys and values."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch

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
from specdecode_engine.model.drafts.frozen import PIECE_BYTES, FrozenHead
from specdecode_engine.model.drafts.frozen_config import FrozenConfig
from specdecode_engine.model.forward import DecodeForward
from specdecode_engine.model.kv.kv_cache import KVCache
from specdecode_engine.sampling.sampler import Sampler
from specdecode_engine.schedule.limits import Limits
from specdecode_engine.speculate.drafter import Drafter
from specdecode_engine.speculate.frozen_drafter import FrozenDrafter, FrozenForward, FrozenLayout
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
    attention_calls,
    draft_sampling_calls,
    empty,
    qkv,
)
from specdecode_kernels import Backend, OpCall


@dataclass(frozen=True, slots=True)
class OverTargetKv(DraftMethod):
    """FROZEN_KV_MTP: a forward over the bonus tokens, then one for each level."""

    head: type[FrozenHead] = FrozenHead
    kept_rows = 1

    def forwards(
        self, sizes: StepSizes, shape: DraftShape, batch_size: int
    ) -> Iterator[ForwardShape]:
        return token_forwards(shape, batch_size, window=1)

    def widths(self, draft: DraftConfig) -> Mapping[ForwardKind, ForwardWidths]:
        has_ids = _frozen_config(draft).shortlist is not None
        widths = ForwardWidths(draft.draft_vocab_size, draft.recurrent_width, has_ids)
        return {ForwardKind.CATCH_UP: widths, ForwardKind.DRAFT_STEP: widths}

    def scratch_bytes(self, plan: DraftPlan, running: int) -> int:
        # Logits, their log-probabilities, and the tokens and weights of a shortlist.
        scores = running * plan.sizes.topk * plan.config.draft_vocab_size * 4 * 2
        is_listed = _frozen_config(plan.config).shortlist is not None
        return scores * 2 + PIECE_BYTES if is_listed else scores

    def op_calls(self, needs: KernelNeeds, draft: DraftConfig, ops_in: OpsIn) -> Iterator[OpCall]:
        config, ops = _frozen_config(draft), ops_in(None)
        yield from attention_calls(needs, "draft", draft, ops_in, tuple(_attention_rows(needs)))
        yield from _query_calls(needs, config, ops)
        if config.shortlist is None:
            for batch in needs.batch_sizes:
                yield from draft_sampling_calls(draft, batch, 1, ops)

    def wire(
        self,
        plan: DraftPlan,
        network: LoadedDraft,
        limits: Limits,
        table: RequestTable,
        target_pool: KVCache,
    ) -> DrafterWiring:
        assert isinstance(network, FrozenHead)
        ring = plan.make_ring(self.kept_rows)
        assert ring is not None
        layout, forward = FrozenLayout(network, table, ring), FrozenForward(network, target_pool)

        def make(sampler: Sampler, graphs: GraphCache) -> Drafter:
            return FrozenDrafter(layout, sampler, graphs, plan.sizes.topk)

        functions = {
            ForwardKind.CATCH_UP: DecodeForward(layout.bonus, forward),
            ForwardKind.DRAFT_STEP: DecodeForward(layout.drafted, forward),
        }
        return DrafterWiring(functions, make)


def _frozen_config(draft: DraftConfig) -> FrozenConfig:
    assert isinstance(draft, FrozenConfig)
    return draft


def _attention_rows(needs: KernelNeeds) -> Iterator[AttentionRows]:
    widths = {1, *(shape.topk for shape in needs.shapes if shape.num_steps > 1)}
    for batch in needs.batch_sizes:
        for rows in sorted(widths):
            yield AttentionRows("drafted tokens", (rows,) * batch)


def _query_calls(needs: KernelNeeds, config: FrozenConfig, ops: Backend) -> Iterator[OpCall]:
    """Norms and angles of query heads, of each size."""
    for shape in config.layer_map.shapes:
        weight = empty(shape.k_head_dim, dtype=needs.dtype)
        angles = empty(3, shape.k_head_dim // 2, dtype=torch.float32)
        for rows in (1, 3):
            q, k, _ = qkv(needs, config, shape, rows)
            norm = partial(ops.rms_norm, q, weight, config.decoder.rms_norm_eps)
            yield "norms of queries of the draft", norm
        yield "angles of queries of the draft", partial(ops.apply_rope, q, k, angles, angles)
