"""Drafting with a module for each draft step."""

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
from specdecode_engine.model.drafts.mtp import MtpChainHead
from specdecode_engine.model.drafts.mtp_config import MtpChainConfig
from specdecode_engine.model.kv.kv_cache import KVCache
from specdecode_engine.sampling.sampler import Sampler
from specdecode_engine.schedule.limits import Limits
from specdecode_engine.speculate.chain_drafter import ChainDrafter, ChainForward
from specdecode_engine.speculate.drafter import Drafter
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
class InChain(DraftMethod):
    """MTP_CHAIN: one forward of each module, over a window that is the same for all of them."""

    head: type[MtpChainHead] = MtpChainHead

    def used_part(self, draft: DraftConfig, max_steps: int) -> DraftConfig:
        return _chain_config(draft).with_modules(max(max_steps, 1))

    def forwards(
        self, sizes: StepSizes, shape: DraftShape, batch_size: int
    ) -> Iterator[ForwardShape]:
        for module in range(shape.num_steps):
            yield ForwardShape(ForwardKind.MODULE, batch_size, _window(sizes), module)

    def widths(self, draft: DraftConfig) -> Mapping[ForwardKind, ForwardWidths]:
        return {ForwardKind.MODULE: ForwardWidths(draft.draft_vocab_size, draft.recurrent_width)}

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
        assert isinstance(network, MtpChainHead)
        ring = plan.make_ring()
        assert ring is not None
        forward = ChainForward(network, plan.make_cache(limits), table, ring)

        def make(sampler: Sampler, graphs: GraphCache) -> Drafter:
            return ChainDrafter(forward, sampler, graphs, plan.sizes.max_path_length)

        return DrafterWiring({ForwardKind.MODULE: forward}, make)


def _chain_config(draft: DraftConfig) -> MtpChainConfig:
    assert isinstance(draft, MtpChainConfig)
    return draft


def _window(sizes: StepSizes) -> int:
    """Rows of a request in every forward: what a module may lack, and what modules before it do."""
    return sizes.max_path_length + max(sizes.max_steps - 1, 0)


def _attention_rows(needs: KernelNeeds) -> Iterator[AttentionRows]:
    yield from draft_attention_rows(needs)
    for batch in needs.batch_sizes:
        for rows in range(1, 2 * needs.path_length - 1):  # a chain has a token for each module
            yield AttentionRows("windows of modules", (rows,) * batch)
