"""How many pages of key-value cache fit: counted before anything large is allocated."""

from dataclasses import dataclass
from typing import ClassVar

from specdecode_api.report import Reason


class NotEnoughMemory(Exception):
    """The model does not fit; the message holds the numbers and the smallest change that helps."""

    reason: ClassVar[Reason] = Reason.NOT_ENOUGH_MEMORY


@dataclass(frozen=True, slots=True)
class MemoryDemand:
    """What one engine needs, in bytes, besides the key-value cache it can fill at will."""

    available_bytes: int  # what is left once the weights are loaded
    weight_bytes: int
    draft_weight_bytes: int
    fixed_bytes: int  # scratch, features, verify logits, slot tables
    graph_bytes: int  # captured passes
    page_bytes: int  # one page in target and draft
    page_size: int
    most_rows: int  # rows that could ever be used
    fewest_rows: int  # rows that one shortest useful request needs


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The outcome: pages in the pool, the dummy page included."""

    demand: MemoryDemand
    pages: int

    @property
    def kv_bytes(self) -> int:
        """Bytes of the key-value cache."""
        return self.pages * self.demand.page_bytes

    def lines(self) -> tuple[str, ...]:
        """Say the plan in lines for the log."""
        demand = self.demand
        rows = (self.pages - 1) * demand.page_size
        return (
            f"weights              {_mib(demand.weight_bytes)}",
            f"draft's weights      {_mib(demand.draft_weight_bytes)}",
            f"left                 {_mib(demand.available_bytes)}",
            f"scratch and logits   {_mib(demand.fixed_bytes)}",
            f"captured passes      {_mib(demand.graph_bytes)}",
            f"key-value cache      {_mib(self.kv_bytes)}  {self.pages} pages, {rows} tokens",
        )


def plan_memory(
    demand: MemoryDemand, kv_cache_bytes: int | None, kv_cache_fraction: float
) -> MemoryPlan:
    """Choose the number of pages.

    Args:
        kv_cache_bytes: the user's own size of the cache, if given.
        kv_cache_fraction: otherwise, the part of what is left that the cache may take.

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
