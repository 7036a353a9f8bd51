"""Computes the number of KV cache pages before anything large is allocated."""

import logging
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from specdecode_api.boot import MemoryBoot
from specdecode_api.report import TerminationReason
from specdecode_engine.model.drafts.draft_config import cached_token_bytes
from specdecode_engine.schedule.limits import Limits
from specdecode_engine.schedule.pages import WindowLimits
from specdecode_engine.startup.config import EngineConfig
from specdecode_engine.steps.logprobs import PIECE_ROWS

log = logging.getLogger(__name__)

FEWEST_WINDOW_PAGES, MOST_WINDOW_PAGES = 1 / 4, 1 / 2
"""Window pages per page, unless there is memory left: at least for the ends of cached prefixes, and
at most, however many running requests could use, since most of them are shorter than that."""

CACHED_STATES_PER_REQUEST, CACHED_STATES_FRACTION = 2, 1 / 8
"""Cached states per running request, as far as such a part of the free memory holds them:
one where its prompt ends, one that it shares with others."""

SHORTEST_TOKENS = 16  # prompt and output of the shortest request that the cache must hold


class NotEnoughMemory(Exception):
    """The model does not fit; the message contains the sizes and the smallest remedy."""

    reason: ClassVar[TerminationReason] = TerminationReason.NOT_ENOUGH_MEMORY


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of a rank's device before the weights are loaded."""

    total_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryDemand:
    """Memory that one engine needs besides the KV cache, in bytes, and sizes of the cache."""

    available_bytes: int  # free after the weights are loaded
    weight_bytes: int
    draft_weight_bytes: int
    fixed_bytes: int  # scratch, features, verify logits, request tables
    graph_bytes: int  # CUDA graphs and their buffers
    page_bytes: int  # one page in target and draft, without the target's windows
    page_size: int
    most_rows: int  # rows that could ever be used
    fewest_rows: int  # rows that one shortest useful request needs
    window_page_bytes: int = 0  # one page of the target's layers with a sliding window
    most_window_pages: int = 0  # that all running requests can use
    fewest_window_pages: int = 0  # that one request can use
    routed_page_bytes: int = 0  # ids of the experts of the tokens of one page
    state_bytes: int = 0  # recurrent layers: states, cached ones, drafted rows
    cached_states: int | None = None  # of prefixes; None: no layer is recurrent
    host_bytes: int = 0  # drafting without a model, in memory of the host
    exchange_bytes: int = 0  # a draft that is read next to the running one

    @property
    def taken_bytes(self) -> int:
        """What buffers, graphs and states take of the available memory."""
        return self.fixed_bytes + self.graph_bytes + self.exchange_bytes + self.state_bytes

    @property
    def all_page_bytes(self) -> int:
        """What one page takes besides its window page."""
        return self.page_bytes + self.routed_page_bytes


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The number of pages and of window pages in the pool, dummy pages included."""

    demand: MemoryDemand
    pages: int
    window_pages: int = 0

    @property
    def kv_bytes(self) -> int:
        demand = self.demand
        return self.pages * demand.page_bytes + self.window_pages * demand.window_page_bytes

    def lines(self) -> tuple[str, ...]:
        demand = self.demand
        rows = (self.pages - 1) * demand.page_size
        return (
            f"weights              {_mib(demand.weight_bytes)}",
            f"draft's weights      {_mib(demand.draft_weight_bytes)}",
            f"left                 {_mib(demand.available_bytes)}",
            f"scratch and logits   {_mib(demand.fixed_bytes)}",
            f"CUDA graphs          {_mib(demand.graph_bytes)}",
            *self._state_line(),
            f"key-value cache      {_mib(self.kv_bytes)}  {self._page_counts()}, {rows} tokens",
            *self._routed_line(),
            *self._host_line(),
            *self._exchange_line(),
        )

    def _state_line(self) -> tuple[str, ...]:
        num_bytes, cached = self.demand.state_bytes, self.demand.cached_states
        line = f"recurrent states     {_mib(num_bytes)}  {cached} of cached prefixes"
        return (line,) if num_bytes else ()

    def _exchange_line(self) -> tuple[str, ...]:
        num_bytes = self.demand.exchange_bytes
        return (f"draft exchange       {_mib(num_bytes)}",) if num_bytes else ()

    def _routed_line(self) -> tuple[str, ...]:
        num_bytes = self.pages * self.demand.routed_page_bytes
        return (f"routed experts       {_mib(num_bytes)}",) if num_bytes else ()

    def _host_line(self) -> tuple[str, ...]:
        num_bytes = self.demand.host_bytes
        return (f"NGRAM, on the host   {_mib(num_bytes)} at most",) if num_bytes else ()

    def _page_counts(self) -> str:
        if not self.demand.window_page_bytes:
            return f"{self.pages} pages"
        return f"{self.pages} pages, {self.window_pages} of sliding windows"


def plan_limits(
    config: EngineConfig,
    weight_bytes: int,
    draft_weight_bytes: int,
    available_bytes: int,
    graph_bytes: int,
    *,
    routed_token_bytes: int = 0,
    exchange_bytes: int = 0,
    device: DeviceMemory | None = None,
) -> Limits:
    """Fit the KV cache and all buffers into the memory that is available after the weights.

    Args:
        routed_token_bytes: what is kept of the experts of one cached token.
        exchange_bytes: a draft that is read next to the running one.
        device: before loading, for a share of it.

    Raises:
        NotEnoughMemory: the message contains the sizes and the smallest change that fits.
    """
    boot, sizes, limit = config.boot, config.sizes, config.boot.memory.max_total_tokens
    windowed = config.target.layer_map.windowed_entries_per_token
    in_windows = windowed * config.kv_dtype.itemsize
    windows, is_cpu = _window_limits(config), config.device.type == "cpu"

    def plan(running: int) -> MemoryPlan:
        most_rows = (config.context_length + sizes.reserve_tokens) * running
        host_bytes = config.text_method.host_bytes(boot, running, config.context_length)
        state_bytes, cached_states = _states(config, running, available_bytes)
        demand = MemoryDemand(
            available_bytes=available_bytes,
            weight_bytes=weight_bytes,
            draft_weight_bytes=draft_weight_bytes,
            fixed_bytes=_fixed_bytes(config, running) + host_bytes * is_cpu,  # of one memory
            host_bytes=host_bytes,
            state_bytes=state_bytes,
            cached_states=cached_states,
            graph_bytes=graph_bytes,
            page_bytes=(_token_bytes(config) - in_windows) * boot.memory.page_size,
            page_size=boot.memory.page_size,
            window_page_bytes=in_windows * boot.memory.page_size,
            most_window_pages=0 if windows is None else windows.suffice_for(running),
            fewest_window_pages=0 if windows is None else windows.suffice_for(1),
            most_rows=most_rows if limit is None else min(most_rows, limit),
            routed_page_bytes=routed_token_bytes * boot.memory.page_size,
            exchange_bytes=exchange_bytes,
            fewest_rows=min(config.context_length, SHORTEST_TOKENS) + sizes.reserve_tokens,
        )
        memory = boot.memory
        share = None if device is None else share_of_device(memory, demand, device)
        return plan_memory(demand, memory.kv_cache_bytes, memory.kv_cache_fraction, share)

    chosen = _plan_or_suggest(plan, boot.scheduling.max_running_requests)
    share = None if device is None else share_of_device(boot.memory, chosen.demand, device)
    if share is not None:
        log.info("memory: the share of the device leaves %d bytes for the KV cache", share)
    for line in chosen.lines():
        log.info("memory: %s", line)
    return _limits(config, chosen)


def _limits(config: EngineConfig, chosen: MemoryPlan) -> Limits:
    boot, sizes = config.boot, config.sizes
    return Limits(
        max_running=boot.scheduling.max_running_requests,
        max_queued=boot.scheduling.max_queued_requests,
        chunk_tokens=boot.scheduling.chunked_prefill_tokens,
        prefill_delay_steps=boot.scheduling.prefill_delay_steps,
        context_length=config.context_length,
        max_draft_tokens=sizes.max_draft_tokens,
        page_size=boot.memory.page_size,
        pages=chosen.pages,
        lag_tokens=sizes.lag_tokens,
        window=config.target.layer_map.window,
        window_pages=chosen.window_pages,
        kv_bytes=chosen.kv_bytes,
        cached_states=chosen.demand.cached_states,
    )


def _plan_or_suggest(plan: Callable[[int], MemoryPlan], running: int) -> MemoryPlan:
    """Plan for `running` requests; an error suggests the largest half of it that would fit."""
    try:
        return plan(running)
    except NotEnoughMemory as error:
        while running := running // 2:
            try:
                plan(running)
            except NotEnoughMemory:
                continue
            raise NotEnoughMemory(f"{error}; max_running_requests {running} would fit") from None
        raise


def _token_bytes(config: EngineConfig) -> int:
    """Bytes of the keys and values of one token in target and draft."""
    models = [config.target] if config.draft is None else [config.target, config.draft]
    return sum(cached_token_bytes(model, config.kv_dtype) for model in models)


def _window_limits(config: EngineConfig) -> WindowLimits | None:
    window = config.target.layer_map.window
    if window is None:
        return None
    return WindowLimits(
        window,
        config.boot.memory.page_size,
        config.sizes.reserve_tokens,
        config.boot.scheduling.chunked_prefill_tokens,
    )


def _fixed_bytes(config: EngineConfig, running: int) -> int:
    """Bytes of request tables, of the most logits at once with float copies, and of the drafter."""
    width = config.sizes.max_draft_tokens
    rows = max(running * width, PIECE_ROWS)
    logits = rows * config.target.vocab_size * 4 * 3
    tables = (running + 1) * (config.context_length + 2 * width) * 8 * 2
    draft = config.draft_plan
    if draft is None:
        return logits + tables
    hidden = (running + 1) * (config.method.kept_rows + config.sizes.max_path_length)
    ring = hidden * draft.aux_width * config.dtype.itemsize
    return logits + tables + ring + config.method.scratch_bytes(draft, running)


def _states(config: EngineConfig, running: int, available_bytes: int) -> tuple[int, int | None]:
    """Return the bytes of the states of recurrent layers, and how many of them are for prefixes."""
    layers, dtype = config.target.delta_layers, config.dtype
    if layers is None:
        return 0, None
    each, cached = layers.state_bytes(dtype), 0
    if config.boot.memory.prefix_cache:
        fitting = int(available_bytes * CACHED_STATES_FRACTION) // each
        cached = min(CACHED_STATES_PER_REQUEST * running, fitting)
    drafted = layers.drafted_bytes(config.sizes.max_draft_tokens, dtype)
    return (running + 1) * (each + drafted) + cached * each, cached


def share_of_device(memory: MemoryBoot, demand: MemoryDemand, device: DeviceMemory) -> int | None:
    """Return the bytes that a share of the device leaves for the KV cache; None without a share.

    What the engine has taken of the device while it loaded is the weights and what the libraries
    keep. The share of vLLM also holds buffers and graphs; that of SGLang holds states of recurrent
    layers, and buffers and graphs are in the rest.
    """
    loaded = max(device.free_bytes - demand.available_bytes, 0)
    if memory.device_fraction is not None:
        return int(device.total_bytes * memory.device_fraction) - loaded - demand.taken_bytes
    if memory.static_fraction is not None:
        return int(device.free_bytes * memory.static_fraction) - loaded - demand.state_bytes
    return None


def plan_memory(
    demand: MemoryDemand,
    kv_cache_bytes: int | None,
    kv_cache_fraction: float,
    share_bytes: int | None = None,
) -> MemoryPlan:
    """Choose the number of pages.

    Args:
        kv_cache_bytes: size of the cache, if given.
        kv_cache_fraction: otherwise, the fraction of the free memory for the cache.
        share_bytes: what a share of the device leaves for the cache, instead of the fraction.

    Raises:
        NotEnoughMemory: not even one short request would fit.
    """
    taken = demand.taken_bytes
    left = demand.available_bytes - taken
    budget = int(left * kv_cache_fraction) if kv_cache_bytes is None else kv_cache_bytes
    if kv_cache_bytes is None and share_bytes is not None:
        budget = min(left, share_bytes)
    if kv_cache_bytes is not None and kv_cache_bytes > left:
        raise NotEnoughMemory(
            f"kv_cache_bytes {kv_cache_bytes} is more than the {max(left, 0)} bytes that are left "
            f"of {demand.available_bytes} available; lower it"
        )
    if demand.most_rows < demand.fewest_rows:
        raise NotEnoughMemory(
            f"max_total_tokens {demand.most_rows} is less than the {demand.fewest_rows} tokens "
            "that one short request takes; raise it"
        )
    pages, window_pages = _split(demand, budget)
    fewest = 1 + -(-demand.fewest_rows // demand.page_size)
    if pages < fewest:
        page_bytes = demand.all_page_bytes + demand.window_page_bytes
        needed = taken + fewest * page_bytes
        raise NotEnoughMemory(
            f"the key-value cache gets {_mib(max(budget, 0))} for {fewest} pages of "
            f"{_mib(page_bytes)}; {_mib(needed)} are needed besides the weights and "
            f"{_mib(demand.available_bytes)} are available: give the engine more memory, or lower "
            "context_length, max_running_requests, num_steps or graphs.max_bytes"
        )
    return MemoryPlan(demand, pages, window_pages)


def _split(demand: MemoryDemand, budget: int) -> tuple[int, int]:
    """Choose as many pages as fit into `budget` bytes with the window pages that go with them.

    What is left of the budget goes to further window pages, up to one for every page.
    """
    page, window = demand.all_page_bytes, demand.window_page_bytes
    most = 1 + -(-demand.most_rows // demand.page_size)
    if not window:
        return min(budget // page, most), 0

    def num_bytes(pages: int) -> int:
        return pages * page + _fewest_window_pages(demand, pages) * window

    pages = bisect_right(range(1, most + 1), budget, key=num_bytes)
    return pages, min((budget - pages * page) // window, pages)


def _fewest_window_pages(demand: MemoryDemand, pages: int) -> int:
    """Return how many window pages so many pages have at least; more pages never have fewer."""
    used = min(demand.most_window_pages, int(pages * MOST_WINDOW_PAGES))
    return min(max(used, int(pages * FEWEST_WINDOW_PAGES), demand.fewest_window_pages), pages)


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"
