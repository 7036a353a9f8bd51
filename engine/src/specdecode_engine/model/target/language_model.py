"""A language model as an engine computes it: token ids in, hidden states and logits out."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from specdecode_engine.batch.rotary_tables import RotaryLimits
from specdecode_engine.model.kv.kv_views import KVView, PagedView
from specdecode_engine.model.layers.experts import Experts
from specdecode_engine.model.layers.layers import Linear
from specdecode_engine.model.target.config import NO_HIDDEN_STATES, AuxHiddenStates, LlamaConfig
from specdecode_engine.model.target.transformers_config import TransformersConfig
from specdecode_kernels import DeltaParams

LanguageModelConfig = LlamaConfig | TransformersConfig


@dataclass(frozen=True, slots=True, eq=False)
class NeededRows:
    """The rows whose hidden states a forward is for: of others the last layer stores KV alone."""

    rows: Tensor  # [n] i64, among the rows of the forward
    kv: PagedView | None  # as these rows see keys and values; None where there are none


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LanguageModel(ABC):
    """A decoder-only model with its weights; holds no state between forwards.

    It is a target, or a STANDALONE draft. Keys and values are the caller's.
    """

    config: LanguageModelConfig
    embedding: Tensor  # [vocab, hidden]
    head: Linear  # [vocab, hidden]
    rotary_limits: RotaryLimits
    skipped_tensors: tuple[str, ...] = ()  # of images and sounds, left out of the checkpoint

    @property
    def context_length(self) -> int:
        """Tokens of the longest text."""
        return self.rotary_limits.context_length

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def delta_params(self) -> DeltaParams | None:
        """Parameters of the recurrent layers; None for a model without any."""
        return None

    @property
    def mixtures(self) -> tuple[Experts, ...]:
        """The experts of each layer that has some, from the first layer to the last."""
        return ()

    @abstractmethod
    def embed(self, ids: Tensor) -> Tensor:
        """Return what the first layer reads for ids [rows] i64: [rows, hidden]."""

    @abstractmethod
    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        kv: KVView,
        aux_spec: AuxHiddenStates = NO_HIDDEN_STATES,
        needed: NeededRows | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Run the rows `ids` [rows] i64 through all layers.

        Args:
            positions: [rows] i64, in the rotary table of each row's text; see `RotaryLimits`.
            needed: None: all rows. `kv` is a `PagedView` then, and `aux_spec` does not select what
                the last layer gives.

        Returns:
            Hidden states of the needed rows [n, hidden] after the final norm, which `logits` takes,
            and the aux hidden states [rows, width] of `aux_spec`; None where it selects nothing.

        Raises:
            ValueError: `aux_spec` names a layer that the model does not have.
        """

    def store_kv(self, ids: Tensor, positions: Tensor, kv: PagedView) -> None:
        """Write the keys and values that `forward` would write."""
        self.forward(ids, positions, kv)

    def logits(self, hidden: Tensor) -> Tensor:
        """Score the vocabulary for [rows, hidden]: [rows, vocab] of the model's type, or wider.

        Whoever stores or reads them widens them: CUDA graphs do so as they copy them.
        """
        return self.head(hidden)
