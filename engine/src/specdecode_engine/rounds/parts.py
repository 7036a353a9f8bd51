"""The parts that every round works with, wired once."""

from dataclasses import dataclass

from specdecode_engine.forward.kv_pool import KvPool
from specdecode_engine.forward.llama import Llama
from specdecode_engine.sampling.sampler import Sampler
from specdecode_engine.slots import SlotTable
from specdecode_engine.speculate.drafter import Drafter


@dataclass(frozen=True, slots=True)
class Parts:
    """Target, its KV, the slots' state, the sampling rule and the drafter, if there is one."""

    target: Llama
    pool: KvPool
    table: SlotTable
    sampler: Sampler
    drafter: Drafter | None

    @property
    def capture(self) -> tuple[int, ...]:
        """Target layers whose outputs the drafter wants."""
        return self.drafter.capture if self.drafter else ()
