"""Loads the draft and wires its drafter: its caches, the forwards of a step, and what runs them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from specdecode_api.speculation import Algorithm
from specdecode_engine.batch.request_table import RequestTable
from specdecode_engine.batch.rotary_tables import RotaryOffsets
from specdecode_engine.batch.shapes import ForwardKind
from specdecode_engine.graphs.cache import GraphCache
from specdecode_engine.model.block_view import BlockMasks
from specdecode_engine.model.dflash import BlockHead
from specdecode_engine.model.draft_config import DraftConfig, HeadConfig
from specdecode_engine.model.draft_scratch import DraftScratch
from specdecode_engine.model.forward import (
    DecodeForward,
    DecodeFunction,
    DraftNetwork,
    draft_forwards,
)
from specdecode_engine.model.kv_cache import KVCache
from specdecode_engine.model.language_model import LanguageModel, LanguageModelConfig
from specdecode_engine.model.layers import Linears
from specdecode_engine.sampling.sampler import Sampler
from specdecode_engine.schedule.scheduler import Limits
from specdecode_engine.speculate.block_drafter import BlockDrafter, BlockForward
from specdecode_engine.speculate.draft_layout import DraftLayout
from specdecode_engine.speculate.draft_state import DraftKvProgress, HiddenStateRing
from specdecode_engine.speculate.drafter import Drafter
from specdecode_engine.speculate.model_drafter import ModelDrafter
from specdecode_engine.speculate.ngram.proposer import NgramProposer
from specdecode_engine.speculate.ngram.texts import text_maker
from specdecode_engine.startup.config import EngineConfig
from specdecode_engine.startup.draft_models import DRAFT_HEADS, draft_folder

LoadedDraft = DraftNetwork | BlockHead[Any]


class DrafterWiring(NamedTuple):
    """The forwards of a drafter, by kind, and what makes the drafter that runs them."""

    functions: Mapping[ForwardKind, DecodeFunction]
    make: Callable[[Sampler, GraphCache], Drafter]


def load_draft(
    config: EngineConfig,
    target: LanguageModel,
    load_model: Callable[[Path, LanguageModelConfig], LanguageModel],
    progress: bool,
    linears: Linears,
) -> LoadedDraft | None:
    """Load the draft of the boot file; None: the algorithm drafts without a model.

    Args:
        load_model: loads a language model.
        linears: makes the linear maps.
    """
    folder = draft_folder(config.boot)
    if folder is None or config.draft is None:
        return None
    if not isinstance(config.draft, HeadConfig):
        return load_model(folder, config.draft)
    kind = DRAFT_HEADS[config.boot.speculation.algorithm]
    return kind.load(folder, target, config=config.draft, progress=progress, linears=linears)


def wire_drafter(
    config: EngineConfig, network: LoadedDraft | None, limits: Limits, table: RequestTable
) -> DrafterWiring | None:
    """Allocate what a drafter keeps; None where nothing is drafted."""
    draft = config.draft
    if draft is None or network is None:
        return None
    pool = _make_cache(config, draft, limits)
    if isinstance(network, BlockHead):
        return _wire_block_drafter(config, network, pool, table)
    progress = DraftKvProgress(table.num_rows, config.device)
    layout = DraftLayout(network, table, progress, _make_ring(config))
    catch_up, draft_step = draft_forwards(network, pool, _make_scratch(config, draft))
    functions: dict[ForwardKind, DecodeFunction] = {
        ForwardKind.CATCH_UP: DecodeForward(layout.catch_up, catch_up),
        ForwardKind.DRAFT_STEP: DecodeForward(layout.draft_step, draft_step),
    }

    def make(sampler: Sampler, graphs: GraphCache) -> Drafter:
        window = config.sizes.max_path_length
        topk = max(shape.topk for shape in config.sizes.shapes.values())
        return ModelDrafter(network, pool, layout, sampler, graphs, window, topk)

    return DrafterWiring(functions, make)


def make_proposer(config: EngineConfig) -> NgramProposer | None:
    """Return what drafts on the host; None where a model drafts, or nothing."""
    boot = config.boot
    if boot.speculation.algorithm is not Algorithm.NGRAM:
        return None
    return NgramProposer(text_maker(boot.speculation.ngram, boot.scheduling.max_running_requests))


def _wire_block_drafter(
    config: EngineConfig, head: BlockHead[Any], pool: KVCache, table: RequestTable
) -> DrafterWiring:
    ring, sizes = _make_ring(config), config.sizes
    assert ring is not None
    forward = BlockForward(
        head=head,
        pool=pool,
        table=table,
        progress=DraftKvProgress(table.num_rows, config.device),
        ring=ring,
        rotary=RotaryOffsets(head.rotary_limits, table.num_rows, config.device),
        masks=BlockMasks.make(table.num_rows, head.config.block_size, config.device),
        window=sizes.max_path_length,
    )

    def make(sampler: Sampler, graphs: GraphCache) -> Drafter:
        topk = max(shape.topk for shape in sizes.shapes.values())
        return BlockDrafter(forward, sampler, graphs, config.block_rows, topk)

    return DrafterWiring({ForwardKind.BLOCK: forward}, make)


def _make_cache(config: EngineConfig, draft: DraftConfig, limits: Limits) -> KVCache:
    """Allocate the KV cache of the draft, with as many pages as the target's.

    It has no window pages: a draft may compute rows long after the target did.
    """
    return KVCache(
        draft.layer_map,
        pages=limits.pages,
        page_size=limits.page_size,
        dtype=config.kv_dtype,
        device=config.device,
        ops=config.kernels["draft"].backend,
        windows=None,
    )


def _make_scratch(config: EngineConfig, draft: DraftConfig) -> DraftScratch:
    return DraftScratch(
        draft.layer_map,
        batch=config.boot.scheduling.max_running_requests,
        rows=config.sizes.scratch_rows,
        dtype=config.dtype,
        device=config.device,
    )


def _make_ring(config: EngineConfig) -> HiddenStateRing | None:
    if config.aux_spec.is_empty:
        return None
    return HiddenStateRing(
        num_rows=config.boot.scheduling.max_running_requests + 1,
        step_rows=config.sizes.max_path_length,
        width=config.widths[ForwardKind.VERIFY].hidden_out,
        dtype=config.dtype,
        device=config.device,
    )
