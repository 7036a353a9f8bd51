"""What every step computes with, built once."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from torch import Tensor

from specdecode_engine.adaptive.draft_source import DraftSources
from specdecode_engine.batch.request_table import RequestTable
from specdecode_engine.batch.rotary_tables import RotaryOffsets
from specdecode_engine.batch.staging import StagingBuffer
from specdecode_engine.graphs.cache import GraphCache
from specdecode_engine.model.adapters.pool import AdapterPool
from specdecode_engine.model.kv.delta_states import DeltaStates
from specdecode_engine.model.kv.kv_cache import KVCache
from specdecode_engine.model.routed_experts import RoutedExperts
from specdecode_engine.model.target.config import AuxHiddenStates
from specdecode_engine.model.target.language_model import LanguageModel
from specdecode_engine.ranks import ALONE, Ranks
from specdecode_engine.sampling.sampler import Sampler
from specdecode_engine.speculate.drafter import Drafter
from specdecode_engine.speculate.ngram.proposer import NgramProposer
from specdecode_kernels import Backend


@dataclass(frozen=True, slots=True)
class ModelContext:
    """The ops, the target and its KV, the request table, the sampler, the forwards, the drafter."""

    ops: Backend
    target: LanguageModel
    pool: KVCache
    table: RequestTable
    rotary: RotaryOffsets  # of the target
    sampler: Sampler
    graphs: GraphCache
    drafter: Drafter | None
    aux_spec: AuxHiddenStates  # the target's hidden states that the drafter reads
    proposer: NgramProposer | None = None  # drafts on the host, before a step is launched
    routed: RoutedExperts | None = None  # where the target's experts are kept, if they are returned
    states: DeltaStates | None = None  # of the target's recurrent layers, if it has any
    ranks: Ranks = ALONE  # among which the target is divided
    sources: DraftSources | None = None  # chooses between drafter and proposer, if there are both
    adapters: AdapterPool | None = None  # of the target, if it has any

    def applied(self, req_indices: Tensor | None) -> AbstractContextManager[LanguageModel]:
        """Return the target with the adapters of the requests of all rows [rows] i64.

        The rows are those of the forward, or of the logits, that is launched within. They may be
        None where there are no adapters.
        """
        if self.adapters is None or req_indices is None:
            return nullcontext(self.target)
        return self.adapters.applied(req_indices)

    @property
    def staging(self) -> StagingBuffer:
        """What a step takes from the host."""
        return self.table.staging
