"""Engines for tests, with NaN in KV cache and states so that a read of an unwritten row shows.

Where experts are kept, unwritten ids are ones that no router chooses.
"""

from dataclasses import replace

import torch

from specdecode_api.boot import EngineBoot
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.kv.draft_scratch import DraftScratch
from specdecode_engine.model.kv.kv_cache import KVCache
from specdecode_engine.ranks import ALONE, Ranks
from specdecode_engine.startup.build import build
from specdecode_engine.startup.config import resolve
from specdecode_engine.startup.memory import SHORTEST_TOKENS


def build_poisoned(
    boot: EngineBoot, cache_tokens: int | None = None, ranks: Ranks = ALONE
) -> EngineCore:
    """Build an engine and fill its KV caches with NaN; it drafts however useless the draft is.

    Args:
        cache_tokens: limit the cache to the pages of one request of this many tokens, at least
            `SHORTEST_TOKENS`.
        ranks: among which the target is divided.
    """
    config = resolve(boot, ranks=ranks)
    if cache_tokens is not None:
        most = max(cache_tokens, SHORTEST_TOKENS) + config.sizes.reserve_tokens
        memory = boot.memory.model_copy(update={"max_total_tokens": most})
        config = replace(config, boot=boot.model_copy(update={"memory": memory}))
    core = build(config, tests_draft=False)
    poison(core.context.pool)
    if core.context.routed is not None:
        ids = core.context.routed.ids
        ids.fill_(torch.iinfo(ids.dtype).max)
    if core.context.states is not None:
        states = core.context.states
        state = states.state
        drafted = state.drafted, state.drafted_gates
        for part in (state.inputs, state.matrices, *drafted, *states.cached):
            part.fill_(torch.nan)
    drafter = core.context.drafter
    for part in vars(drafter).values() if drafter else ():
        if isinstance(part, KVCache):
            poison(part)
    return core


def poison(cache: KVCache | DraftScratch) -> None:
    """Fill a cache with NaN."""
    for rows in [part for group in cache.groups for part in (group.k, group.v)]:
        if rows.dtype.itemsize == 1:  # as bits: no device fills float8
            bits = torch.tensor(torch.nan).to(rows.dtype).view(torch.uint8)
            rows.view(torch.uint8).fill_(int(bits))
        else:
            rows.fill_(torch.nan)
