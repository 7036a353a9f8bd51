"""Every size of an engine, computed once from the boot file and the checkpoints.

All of them follow from the draft shapes that a step can use: the widest verify, the longest path,
the scratch. Nothing large is allocated before they are known to fit.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass

import torch
from torch import Tensor

from specdecode_api.boot import EngineBoot, SpeculationBoot
from specdecode_api.speculation import Algorithm
from specdecode_api.table import candidates
from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.model.eagle_head import AuxHiddenStates
from specdecode_engine.model.kv_cache import KVCache
from specdecode_engine.model.linears import LinearsReport
from specdecode_engine.model.llama import Llama
from specdecode_engine.schedule.scheduler import Limits
from specdecode_engine.startup.memory import MemoryDemand, MemoryPlan, NotEnoughMemory, plan_memory
from specdecode_engine.startup.models import DraftLimits, DraftModel
from specdecode_engine.steps.logprobs import PIECE_ROWS
from specdecode_kernels import Choice

log = logging.getLogger(__name__)

SHORTEST_TOKENS = 16  # prompt and output of the shortest request that the cache must hold


@dataclass(frozen=True, slots=True)
class Loaded:
    """Checkpoints in memory, before the cache is sized."""

    target: Llama
    draft: DraftModel | None
    device: torch.device
    dtype: torch.dtype
    kv_dtype: torch.dtype
    linears: LinearsReport
    kernels: Choice  # of the target; the draft's layers compute with it too

    @property
    def aux_spec(self) -> AuxHiddenStates:
        """Aux hidden states of the target that the draft reads."""
        model = self.draft.model if self.draft else None
        return AuxHiddenStates() if model is None or isinstance(model, Llama) else model.aux_spec


def kv_dtype(boot: EngineBoot, dtype: torch.dtype) -> torch.dtype:
    """Data type of the KV caches of target and draft for weights of `dtype`."""
    return torch.float8_e4m3fn if boot.memory.kv_cache_dtype == "fp8_e4m3" else dtype


def draft_shapes(speculation: SpeculationBoot) -> dict[int, DraftShape]:
    """Every draft shape that a step can use, by `num_steps`."""
    if speculation.algorithm is Algorithm.NONE:
        return {0: DraftShape.chain(0)}
    depths = {*candidates(speculation.entries), speculation.num_steps}
    return {
        steps: DraftShape.of(
            steps,
            speculation.topk,
            speculation.num_draft_tokens if steps == speculation.num_steps else None,
        )
        for steps in sorted(depths)
    }


def max_draft_tokens(speculation: SpeculationBoot) -> int:
    """Rows of the widest verify over all shapes, bonus token included."""
    return max(shape.num_tokens for shape in draft_shapes(speculation).values())


def lag_tokens(boot: EngineBoot, device: torch.device) -> int:
    """Tokens that a step in flight may add before the host knows; 0 without overlap."""
    wanted = boot.scheduling.overlap
    if not (device.type == "cuda" if wanted is None else wanted):
        return 0
    return max(shape.path_length for shape in draft_shapes(boot.speculation).values())


def reserve_tokens(boot: EngineBoot, device: torch.device) -> int:
    """Maximum rows of a sequence beyond its known tokens."""
    return max_draft_tokens(boot.speculation) + lag_tokens(boot, device)


def plan_limits(
    boot: EngineBoot,
    loaded: Loaded,
    available_bytes: int,
    graph_bytes: int = 0,
) -> Limits:
    """Fit everything into the free memory; `graph_bytes` are reserved for CUDA graphs.

    Raises:
        NotEnoughMemory: the message contains the sizes and the smallest change that fits.
    """
    running = boot.scheduling.max_running_requests
    memory = _Memory(available_bytes, graph_bytes)
    try:
        plan = _plan(boot, loaded, memory, running)
    except NotEnoughMemory as error:
        raise _with_remedy(error, boot, loaded, memory) from None
    for line in plan.lines():
        log.info("memory: %s", line)
    return Limits(
        max_running=running,
        max_queued=boot.scheduling.max_queued_requests,
        chunk_tokens=boot.scheduling.chunked_prefill_tokens,
        context_length=loaded.target.context_length,
        max_draft_tokens=max_draft_tokens(boot.speculation),
        page_size=boot.memory.page_size,
        pages=plan.pages,
        lag_tokens=lag_tokens(boot, loaded.device),
    )


@dataclass(frozen=True, slots=True)
class _Memory:
    """Available memory, and the part reserved for CUDA graphs."""

    available_bytes: int
    graph_bytes: int


def _plan(boot: EngineBoot, loaded: Loaded, memory: _Memory, running: int) -> MemoryPlan:
    reserve = reserve_tokens(boot, loaded.device)
    context = loaded.target.context_length
    most_rows = (context + reserve) * running
    limit = boot.memory.max_total_tokens
    demand = MemoryDemand(
        available_bytes=memory.available_bytes,
        weight_bytes=_tensor_bytes(loaded.target),
        draft_weight_bytes=_tensor_bytes(loaded.draft.model) if loaded.draft else 0,
        fixed_bytes=_fixed_bytes(loaded, running, boot.speculation, context),
        graph_bytes=memory.graph_bytes,
        page_bytes=_page_bytes(loaded, boot.memory.page_size),
        page_size=boot.memory.page_size,
        most_rows=most_rows if limit is None else min(most_rows, limit),
        fewest_rows=min(context, SHORTEST_TOKENS) + reserve,
    )
    return plan_memory(demand, boot.memory.kv_cache_bytes, boot.memory.kv_cache_fraction)


def _with_remedy(
    error: NotEnoughMemory, boot: EngineBoot, loaded: Loaded, memory: _Memory
) -> NotEnoughMemory:
    """Look for the largest number of running requests that fits, halving it."""
    running = boot.scheduling.max_running_requests // 2
    while running:
        try:
            _plan(boot, loaded, memory, running)
        except NotEnoughMemory:
            running //= 2
        else:
            return NotEnoughMemory(f"{error}; max_running_requests {running} would fit")
    return error


def _page_bytes(loaded: Loaded, page_size: int) -> int:
    config = loaded.target.config
    target = KVCache.bytes_per_page(
        config.num_hidden_layers,
        page_size,
        config.decoder.num_key_value_heads,
        config.decoder.head_dim,
        loaded.kv_dtype,
    )
    draft = loaded.draft.page_bytes(page_size, loaded.kv_dtype) if loaded.draft else 0
    return target + draft


def _fixed_bytes(loaded: Loaded, running: int, speculation: SpeculationBoot, context: int) -> int:
    """Slot tables, the most logits at once with float copies, and what the drafter keeps."""
    shapes = draft_shapes(speculation).values()
    width = max_draft_tokens(speculation)
    rows = max(running * width, PIECE_ROWS)
    logits = rows * loaded.target.config.vocab_size * 4 * 3
    tables = (running + 1) * (context + 2 * width) * 8 * 2
    draft = loaded.draft.fixed_bytes(running, DraftLimits.over(shapes)) if loaded.draft else 0
    return logits + tables + draft


def _tensor_bytes(record: object) -> int:
    """Bytes of all tensors in a record of records, each storage once."""
    storages = [tensor.untyped_storage() for tensor in _tensors(record)]
    return sum({one.data_ptr(): one.nbytes() for one in storages}.values())


def _tensors(record: object) -> Iterator[Tensor]:
    if isinstance(record, Tensor):
        yield record
    elif isinstance(record, tuple | list):
        for item in record:
            yield from _tensors(item)
    elif is_dataclass(record):
        for field in fields(record):
            yield from _tensors(getattr(record, field.name))
