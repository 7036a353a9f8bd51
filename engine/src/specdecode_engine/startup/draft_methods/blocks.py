"""Drafting a block of tokens in one forward."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from specdecode_engine.batch.request_table import RequestTable
from specdecode_engine.batch.rotary_tables import RotaryOffsets
from specdecode_engine.batch.shapes import (
    DraftShape,
    ForwardKind,
    ForwardShape,
    ForwardWidths,
    StepSizes,
)
from specdecode_engine.graphs.cache import GraphCache
from specdecode_engine.model.drafts.dflash import BlockHead
from specdecode_engine.model.drafts.dflash_config import BlockConfig
from specdecode_engine.model.drafts.draft_config import DraftConfig
from specdecode_engine.model.kv.block_view import BlockMasks
from specdecode_engine.model.kv.kv_cache import KVCache
from specdecode_engine.sampling.sampler import Sampler
from specdecode_engine.schedule.limits import Limits
from specdecode_engine.speculate.block_drafter import BlockDrafter, BlockForward
from specdecode_engine.speculate.draft_state import DraftKvProgress
from specdecode_engine.speculate.drafter import Drafter
from specdecode_engine.startup.attention import layer_params
from specdecode_engine.startup.draft_methods.method import (
    DrafterWiring,
    DraftMethod,
    DraftPlan,
    LoadedDraft,
)
from specdecode_engine.startup.kernel_needs import KernelNeeds
from specdecode_engine.startup.op_inputs import (
    SPLITS,
    OpsIn,
    attend,
    draft_sampling_calls,
    empty,
    layer_kv,
)
from specdecode_kernels import DEFAULT_ATTENTION, Backend, OpCall


@dataclass(frozen=True, slots=True)
class InBlocks(DraftMethod):
    """DFlash, DSpark: one forward over a block, whatever is verified of it."""

    head: type[BlockHead[Any]]
    drafts_blocks = True

    def forwards(
        self, sizes: StepSizes, shape: DraftShape, batch_size: int
    ) -> Iterator[ForwardShape]:
        yield ForwardShape(ForwardKind.BLOCK, batch_size, sizes.max_steps)

    def widths(self, draft: DraftConfig) -> Mapping[ForwardKind, ForwardWidths]:
        return {ForwardKind.BLOCK: ForwardWidths(draft.draft_vocab_size, draft.recurrent_width)}

    def scratch_bytes(self, plan: DraftPlan, running: int) -> int:
        # Logits of a block, and scores of its tokens or of those after a level of a tree.
        rows = max(plan.sizes.max_steps, plan.sizes.topk)
        return running * rows * plan.config.draft_vocab_size * 4 * 2

    def op_calls(self, needs: KernelNeeds, draft: DraftConfig, ops_in: OpsIn) -> Iterator[OpCall]:
        model, ops = _block_config(draft), ops_in(None)
        for splits in SPLITS:
            yield from _attention_calls(needs, model, ops_in(splits))
        yield from _context_calls(needs, model, ops)
        # Tokens that depend on those before them are chosen level by level.
        levels = {count for shape in needs.shapes for count in (1, shape.topk, shape.num_steps)}
        for batch in needs.batch_sizes:
            for count in sorted(levels - {0}):
                yield from draft_sampling_calls(draft, batch, count, ops)

    def wire(
        self,
        plan: DraftPlan,
        network: LoadedDraft,
        limits: Limits,
        table: RequestTable,
        target_pool: KVCache,
    ) -> DrafterWiring:
        assert isinstance(network, BlockHead)
        ring, sizes = plan.make_ring(), plan.sizes
        assert ring is not None
        forward = BlockForward(
            head=network,
            pool=plan.make_cache(limits),
            table=table,
            progress=DraftKvProgress(table.num_rows, plan.device),
            ring=ring,
            rotary=RotaryOffsets(network.rotary_limits, table.num_rows, plan.device),
            masks=BlockMasks.make(table.num_rows, network.config.block_size, plan.device),
            window=sizes.max_path_length,
            is_chain=sizes.topk == 1,
        )

        def make(sampler: Sampler, graphs: GraphCache) -> Drafter:
            return BlockDrafter(forward, sampler, graphs, sizes.max_steps, sizes.topk)

        return DrafterWiring({ForwardKind.BLOCK: forward}, make)


def _block_config(draft: DraftConfig) -> BlockConfig:
    assert isinstance(draft, BlockConfig)
    return draft


def _attention_calls(needs: KernelNeeds, model: BlockConfig, ops: Backend) -> Iterator[OpCall]:
    """Attention of blocks; see `BlockView`."""
    rows, why = model.block_size, "blocks of the draft"
    for batch in needs.batch_sizes:
        blocks = (rows,) * batch, rows, None
        for shape, params in layer_params(model).items():
            yield why, partial(attend, needs, model, ops, shape, params, *blocks)
            if shape.sliding_window is None or all(model.causal_layers):
                continue
            for part in (params, DEFAULT_ATTENTION):
                call = partial(attend, needs, model, ops, shape, part, *blocks, with_lse=True)
                yield why, call
            yield why, partial(_merge, needs, model, ops, rows * batch)


def _merge(needs: KernelNeeds, model: BlockConfig, ops: Backend, rows: int) -> None:
    heads = model.decoder.num_attention_heads
    out = empty(rows, heads, model.decoder.head_dim, dtype=needs.dtype)
    lse = empty(rows, heads, dtype=torch.float32)
    ops.merge_states(out, lse, out, lse)


def _context_calls(needs: KernelNeeds, model: BlockConfig, ops: Backend) -> Iterator[OpCall]:
    """Keys and values of known positions, as one projection of all layers leaves them."""
    decoder, layers, why = model.decoder, model.num_hidden_layers, "context of the draft"
    weight = empty(decoder.head_dim, dtype=needs.dtype)
    for rows in (1, 3):
        shape = rows, 2, layers, decoder.num_key_value_heads, decoder.head_dim
        keys, values = (part[:, -1] for part in empty(*shape, dtype=needs.dtype).unbind(1))
        k = empty(rows, *shape[3:], dtype=needs.dtype)
        angles = empty(rows, decoder.head_dim // 2, dtype=torch.float32)
        yield why, partial(ops.rms_norm, keys, weight, decoder.rms_norm_eps)
        for one in model.layer_map.shapes:
            store = partial(ops.rope_and_store_kv, layer_kv(needs, one), empty(rows))
            yield why, partial(store, k[:, :0], k, values, angles, angles)
