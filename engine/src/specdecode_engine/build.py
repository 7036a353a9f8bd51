"""The one place that chooses and wires the parts of an engine."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import torch

from specdecode_api.boot import EngineBoot, SpeculationBoot, TableEntry
from specdecode_api.report import Reason
from specdecode_api.speculation import not_yet_available
from specdecode_engine.depth.ranges import BatchRange, DepthTable
from specdecode_engine.depth.static import StaticDepth
from specdecode_engine.drafters import DraftLimits, check_fit, load_draft
from specdecode_engine.forward.kv_pool import KvPool
from specdecode_engine.forward.llama import Llama
from specdecode_engine.host import available_bytes, choose_device, default_threads
from specdecode_engine.loop import EngineCore
from specdecode_engine.rounds.parts import Parts
from specdecode_engine.rounds.timing import Stopwatch
from specdecode_engine.sampling.sampler import Sampler
from specdecode_engine.schedule.limits import Limits
from specdecode_engine.schedule.prefix_cache import PrefixCache
from specdecode_engine.schedule.scheduler import Scheduler
from specdecode_engine.sizes import Loaded, draft_shapes, plan_limits
from specdecode_engine.slots import SlotTable

log = logging.getLogger(__name__)

_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}


class CannotServe(Exception):
    """The boot file asks for something that this engine cannot do; the message says what."""

    reason: ClassVar[Reason] = Reason.CANNOT_SERVE


def build_core(
    boot: EngineBoot,
    *,
    progress: bool = False,
    poison: bool = False,
    pool_tokens: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> EngineCore:
    """Load the checkpoints and wire an engine core.

    Args:
        progress: show bars while loading.
        poison: fill unwritten KV with NaN, so that a read of it shows; for tests.
        pool_tokens: give the cache just the pages for one request of this many tokens; for tests.
        clock: seconds, monotonic.

    Raises:
        CannotServe, CheckpointError, NotEnoughMemory, RuntimeError: with what to change.
    """
    _refuse_unavailable(boot.speculation)
    torch.set_num_threads(boot.threads or default_threads())
    loaded = _load(boot, progress)
    shapes = draft_shapes(boot.speculation)
    limits = plan_limits(boot, loaded, pool_tokens, available_bytes(loaded.device))
    table = SlotTable(
        slots=limits.max_running + 1,
        width=limits.longest_sequence + limits.reserve_tokens + 1,
        pages_per_slot=limits.pages_per_sequence,
        page_size=limits.page_size,
        device=loaded.device,
    )
    config = loaded.target.config
    sampler = Sampler(limits.max_running + 1, config.vocab_size, loaded.device)
    pool = _pool(loaded.target, limits, loaded, poison)
    drafter = None
    if loaded.draft is not None:
        draft_pool = loaded.draft.make_pool(limits, poison)
        drafter = loaded.draft.make_drafter(
            draft_pool, table, sampler, limits.max_running, DraftLimits.over(shapes.values())
        )
    parts = Parts(loaded.target, pool, table, sampler, drafter)
    depth = StaticDepth(boot.speculation.num_steps, _table(boot.speculation))
    lookahead = drafter.lookahead if drafter else 0
    cache = PrefixCache(limits.page_size, lookahead, is_on=boot.memory.prefix_cache)
    scheduler = Scheduler(limits, depth, cache)
    eos = frozenset(config.eos_token_ids)
    stopwatch = Stopwatch(loaded.device, clock)
    return EngineCore(parts, scheduler, shapes, eos, stopwatch, _facts(loaded, limits))


def _facts(loaded: Loaded, limits: Limits) -> dict[str, object]:
    return {
        "device": str(loaded.device),
        "dtype": str(loaded.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "max_draft_tokens": limits.max_draft_tokens,
        "kv_pages": limits.pages,
        "longest_sequence": limits.longest_sequence,
        "overlap": limits.lag_tokens > 0,
    }


def _table(speculation: SpeculationBoot) -> DepthTable | None:
    ranges = [
        BatchRange(int(bound), **(entry.model_dump() | {"candidate_steps": _ascending(entry)}))
        for bound, entry in speculation.table.items()
    ]
    return DepthTable(ranges) if ranges else None


def _ascending(entry: TableEntry) -> tuple[int, ...]:
    return tuple(sorted(set(entry.candidate_steps)))


def _refuse_unavailable(speculation: SpeculationBoot) -> None:
    reasons = not_yet_available(speculation.algorithm, speculation.policy, speculation.topk)
    if reasons:
        raise CannotServe("speculation: " + "; ".join(reasons))


def _load(boot: EngineBoot, progress: bool) -> Loaded:
    check_fit(boot)
    device = choose_device(boot.device)
    wanted = boot.model.dtype
    # A CPU computes half-width floats slowly and nothing is saved there: auto means float32.
    is_float32 = wanted == "auto" and device.type == "cpu"
    dtype = torch.float32 if is_float32 else _DTYPES.get(wanted)
    target = Llama.load(
        Path(boot.model.path),
        dtype=dtype,
        device=device,
        context_length=boot.model.context_length,
        progress=progress,
    )
    trained = target.config.rope.trained_positions
    if target.context_length > trained:
        raise CannotServe(
            f"model.context_length {target.context_length} is more than the {trained} positions "
            f"that {boot.model.path} was trained for; lower it"
        )
    draft = load_draft(boot, target, device, progress)
    return Loaded(target, draft, device, target.dtype)


def _pool(model: Llama, limits: Limits, loaded: Loaded, poison: bool) -> KvPool:
    config = model.config
    return KvPool(
        layers=config.num_hidden_layers,
        pages=limits.pages,
        page_size=limits.page_size,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        dtype=loaded.dtype,
        device=loaded.device,
        poison=poison,
    )
