"""What the start of an engine has to know of an algorithm; steps use the drafter that it makes."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request_table import RequestTable
from specdecode_engine.batch.shapes import (
    DraftShape,
    ForwardKind,
    ForwardShape,
    ForwardWidths,
    StepSizes,
)
from specdecode_engine.graphs.cache import GraphCache
from specdecode_engine.model.drafts.draft_config import DraftConfig
from specdecode_engine.model.drafts.draft_head import HiddenStateHead
from specdecode_engine.model.forward import DecodeFunction
from specdecode_engine.model.kv.kv_cache import KVCache
from specdecode_engine.model.target.language_model import LanguageModel
from specdecode_engine.sampling.sampler import Sampler
from specdecode_engine.schedule.limits import Limits
from specdecode_engine.speculate.draft_state import KEPT_ROWS, HiddenStateRing
from specdecode_engine.speculate.drafter import Drafter
from specdecode_engine.speculate.ngram import library
from specdecode_engine.speculate.ngram.proposer import NgramProposer
from specdecode_engine.speculate.ngram.texts import ngram_bytes, text_maker
from specdecode_engine.startup.kernel_needs import KernelNeeds
from specdecode_engine.startup.op_inputs import OpsIn
from specdecode_kernels import Backend, OpCall

LoadedDraft = LanguageModel | HiddenStateHead[Any]


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """A draft model, and with what and in which sizes it is computed."""

    config: DraftConfig
    sizes: StepSizes
    aux_width: int  # values of the target's aux hidden states per row; 0: none are read
    max_running: int
    dtype: torch.dtype
    kv_dtype: torch.dtype
    device: torch.device
    ops: Backend  # of its KV cache

    def make_cache(self, limits: Limits) -> KVCache:
        """Allocate the KV cache of the draft, with as many pages as the target's.

        It has no window pages: a draft may compute rows long after the target did.
        """
        return KVCache(
            self.config.layer_map,
            pages=limits.pages,
            page_size=limits.page_size,
            dtype=self.kv_dtype,
            device=self.device,
            ops=self.ops,
            windows=None,
        )

    def make_ring(self, kept: int = KEPT_ROWS) -> HiddenStateRing | None:
        """Allocate the aux hidden states that are kept of each request, if any are read."""
        if not self.aux_width:
            return None
        return HiddenStateRing(
            num_rows=self.max_running + 1,
            step_rows=self.sizes.max_path_length,
            width=self.aux_width,
            dtype=self.dtype,
            device=self.device,
            kept=kept,
        )


class DrafterWiring(NamedTuple):
    """The forwards of a drafter, by kind, and what makes the drafter that runs them."""

    functions: Mapping[ForwardKind, DecodeFunction]
    make: Callable[[Sampler, GraphCache], Drafter]


class DraftMethod:
    """How an algorithm drafts; this one does not draft.

    Attributes:
        head: class of the draft; None: a draft is a language model, or there is none.
        drafts_blocks: whether drafting takes the same time at all draft steps but 0.
        may_find_nothing: whether a step may have no draft although draft steps were decided.
        kept_rows: aux hidden states of each request that are certain to be kept.
    """

    head: type[HiddenStateHead[Any]] | None = None
    drafts_blocks = False
    may_find_nothing = False
    kept_rows = KEPT_ROWS

    def unsupported_reason(self) -> str | None:
        """Return why this machine cannot draft this way, with the remedy."""
        return None

    def used_part(self, draft: DraftConfig, max_steps: int) -> DraftConfig:
        """Return the config of the part of a draft that so many draft steps use."""
        return draft

    def forwards(
        self, sizes: StepSizes, shape: DraftShape, batch_size: int
    ) -> Iterable[ForwardShape]:
        """List the forwards of a draft model in a step with draft steps."""
        return ()

    def widths(self, draft: DraftConfig) -> Mapping[ForwardKind, ForwardWidths]:
        """Return the columns that each of these forwards returns."""
        return {}

    def scratch_bytes(self, plan: DraftPlan, running: int) -> int:
        """Bytes that drafting takes besides weights, KV cache and aux hidden states."""
        return 0

    def host_bytes(self, boot: EngineBoot, running: int, context_length: int) -> int:
        """Bytes that drafting takes on the host."""
        return 0

    def op_calls(self, needs: KernelNeeds, draft: DraftConfig, ops_in: OpsIn) -> Iterator[OpCall]:
        """Yield the calls of ops by a draft, besides those of its layers."""
        yield from ()

    def wire(
        self,
        plan: DraftPlan,
        network: LoadedDraft,
        limits: Limits,
        table: RequestTable,
        target_pool: KVCache,
    ) -> DrafterWiring:
        """Allocate what a drafter keeps.

        Args:
            target_pool: keys and values of the target.
        """
        raise NotImplementedError(f"{type(self).__name__} has no draft model")

    def make_proposer(self, boot: EngineBoot) -> NgramProposer | None:
        """Make what drafts on the host; None where a model drafts, or nothing."""
        return None


class FromText(DraftMethod):
    """NGRAM: what followed the same tokens before."""

    may_find_nothing = True

    def unsupported_reason(self) -> str | None:
        reason = library.unsupported_reason()
        return reason and f"NGRAM is in C, compiled at the first start: {reason}"

    def host_bytes(self, boot: EngineBoot, running: int, context_length: int) -> int:
        return ngram_bytes(boot.speculation.ngram, running, context_length)

    def make_proposer(self, boot: EngineBoot) -> NgramProposer:
        maker = text_maker(boot.speculation.ngram, boot.scheduling.max_running_requests)
        return NgramProposer(maker)
