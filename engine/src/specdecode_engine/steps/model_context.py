"""What every step computes with, built once."""

from dataclasses import dataclass

from torch import Tensor

from specdecode_engine.batch.request_table import RequestTable
from specdecode_engine.graphs.cache import GraphCache
from specdecode_engine.model.eagle_head import AuxHiddenStates
from specdecode_engine.model.kv_cache import KVCache
from specdecode_engine.model.llama import Hidden, Llama
from specdecode_engine.sampling.sampler import Sampler
from specdecode_engine.speculate.drafter import Drafter
from specdecode_kernels import Backend

_NO_HIDDEN_STATES = AuxHiddenStates()


@dataclass(frozen=True, slots=True)
class ModelContext:
    """The ops, the target and its KV, the request table, the sampler, the forwards, the drafter."""

    ops: Backend
    target: Llama
    pool: KVCache
    table: RequestTable
    sampler: Sampler
    graphs: GraphCache
    drafter: Drafter | None

    @property
    def aux_spec(self) -> AuxHiddenStates:
        """The target's hidden states that the drafter reads."""
        return self.drafter.aux_spec if self.drafter else _NO_HIDDEN_STATES

    def aux_hidden_states(self, hidden: Hidden) -> Tensor | None:
        """Return what the drafter reads, [rows, width]; None where it reads nothing."""
        return self.aux_spec.select(hidden.last, hidden.aux_hidden_states)
