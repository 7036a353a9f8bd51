"""The parts that every round works with, wired once."""

from dataclasses import dataclass

from torch import Tensor

from specdecode_engine.forward.eagle_head import Capture
from specdecode_engine.forward.kv_pool import KvPool
from specdecode_engine.forward.llama import Hidden, Llama
from specdecode_engine.graphs.states import RuntimeStates
from specdecode_engine.sampling.sampler import Sampler
from specdecode_engine.slots import SlotTable
from specdecode_engine.speculate.drafter import Drafter

_NOTHING = Capture()


@dataclass(frozen=True, slots=True)
class Parts:
    """Target, its KV, the slots' state, the sampling rule, what runs passes, the drafter."""

    target: Llama
    pool: KvPool
    table: SlotTable
    sampler: Sampler
    states: RuntimeStates
    drafter: Drafter | None

    @property
    def capture(self) -> Capture:
        """What the drafter reads of the target."""
        return self.drafter.capture if self.drafter else _NOTHING

    def features_of(self, hidden: Hidden) -> Tensor | None:
        """Hand out what the drafter reads, [rows, width]; None where it reads nothing."""
        return self.capture.pick(hidden.last, hidden.captured)
