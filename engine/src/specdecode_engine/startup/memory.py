"""Computes the number of KV cache pages before anything large is allocated."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from specdecode_api.boot import MemoryBoot
from specdecode_api.report import TerminationReason

log = logging.getLogger(__name__)


class NotEnoughMemory(Exception):
    """The model does not fit; the message contains the sizes and the smallest remedy."""

    reason: ClassVar[TerminationReason] = TerminationReason.NOT_ENOUGH_MEMORY


@dataclass(frozen=True, slots=True)
class MemoryDemand:
    """Memory that one engine needs besides the KV cache, in bytes, and sizes of the cache."""

    available_bytes: int  # free after the weights are loaded
    weight_bytes: int
    draft_weight_bytes: int
    fixed_bytes: int  # scratch, features, verify logits, slot tables
    graph_bytes: int  # CUDA graphs and their buffers
    page_bytes: int  # one page in target and draft
    page_size: int
    most_rows: int  # rows that could ever be used
    fewest_rows: int  # rows that one shortest useful request needs


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The number of pages in the pool, dummy page included."""

    demand: MemoryDemand
    pages: int

    @property
    def kv_bytes(self) -> int:
        """Bytes of the key-value cache."""
        return self.pages * self.demand.page_bytes

    def lines(self) -> tuple[str, ...]:
        """Return the plan as log lines."""
        demand = self.demand
        rows = (self.pages - 1) * demand.page_size
        return (
            f"weights              {_mib(demand.weight_bytes)}",
            f"draft's weights      {_mib(demand.draft_weight_bytes)}",
            f"left                 {_mib(demand.available_bytes)}",
            f"scratch and logits   {_mib(demand.fixed_bytes)}",
            f"CUDA graphs          {_mib(demand.graph_bytes)}",
            f"key-value cache      {_mib(self.kv_bytes)}  {self.pages} pages, {rows} tokens",
        )


def plan_pages(
    demand_of: Callable[[int], MemoryDemand], running: int, boot: MemoryBoot
) -> MemoryPlan:
    """Choose the number of pages for `running` requests and log the plan.

    Args:
        demand_of: the demand for a number of running requests.

    Raises:
        NotEnoughMemory: the message contains the sizes and the largest number that would fit.
    """
    settings = boot.kv_cache_bytes, boot.kv_cache_fraction
    try:
        plan = plan_memory(demand_of(running), *settings)
    except NotEnoughMemory as error:
        while running := running // 2:
            try:
                plan_memory(demand_of(running), *settings)
            except NotEnoughMemory:
                continue
            raise NotEnoughMemory(f"{error}; max_running_requests {running} would fit") from None
        raise
    for line in plan.lines():
        log.info("memory: %s", line)
    return plan


def plan_memory(
    demand: MemoryDemand, kv_cache_bytes: int | None, kv_cache_fraction: float
) -> MemoryPlan:
    """Choose the number of pages.

    Args:
        kv_cache_bytes: size of the cache, if given.
        kv_cache_fraction: otherwise, the fraction of the free memory for the cache.

    Raises:
        NotEnoughMemory: not even one short request would fit.
    """
    taken = demand.fixed_bytes + demand.graph_bytes
    left = demand.available_bytes - taken
    budget = int(left * kv_cache_fraction) if kv_cache_bytes is None else kv_cache_bytes
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
    most = 1 + -(-demand.most_rows // demand.page_size)
    pages = min(budget // demand.page_bytes, most)
    fewest = 1 + -(-demand.fewest_rows // demand.page_size)
    if pages < fewest:
        needed = taken + fewest * demand.page_bytes
        raise NotEnoughMemory(
            f"the key-value cache gets {_mib(max(budget, 0))} for {fewest} pages of "
            f"{_mib(demand.page_bytes)}; {_mib(needed)} are needed besides the weights and "
            f"{_mib(demand.available_bytes)} are available: give the engine more memory, or lower "
            "context_length, max_running_requests, num_steps or graphs.max_bytes"
        )
    return MemoryPlan(demand, pages)


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"
