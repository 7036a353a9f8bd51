"""Draft networks that read hidden states of the target: what all of them share."""

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Self, TypeVar

import torch
from torch import Tensor

from specdecode_engine.batch.rotary_tables import RotaryLimits
from specdecode_engine.model.checkpoint.checkpoint import Shapes, TensorStore
from specdecode_engine.model.checkpoint.config_file import ConfigFile
from specdecode_engine.model.checkpoint.pickle_store import open_unquantized
from specdecode_engine.model.drafts.draft_config import HeadConfig
from specdecode_engine.model.kv.kv_views import KVView, PagedView
from specdecode_engine.model.layers.layers import Linear
from specdecode_engine.model.layers.linears import Linears, Placement
from specdecode_engine.model.layers.rope import make_rotary_limits
from specdecode_engine.model.target.language_model import LanguageModel, LanguageModelConfig
from specdecode_engine.model.target.weights import Weights
from specdecode_engine.process.start_progress import ShowProgress
from specdecode_kernels import AnyWeight

Config = TypeVar("Config", bound=HeadConfig)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class HiddenStateHead(ABC, Generic[Config]):
    """A head with its weights; its cache is the caller's.

    Published files may repeat the target's embedding and head. What equals the target's is shared
    with it, so that it takes no memory; what differs is used, since the draft was trained with it.
    """

    config: Config
    embedding: Tensor  # [vocab, hidden]
    head: Linear  # [draft_vocab, hidden]
    rotary_limits: RotaryLimits
    angles: Tensor  # [2, rows of the rotary tables, head_dim / 2]
    draft_to_target: Tensor | None = None  # [draft_vocab] i64, ids of the target; None: the same

    @classmethod
    def load(
        cls,
        folder: Path,
        target: LanguageModel,
        *,
        config: Config | None = None,
        progress: ShowProgress | None = None,
        linears: Linears | None = None,
        device: torch.device | None = None,
        must_share: Collection[AnyWeight] = (),
    ) -> Self:
        """Load a head in the target's type and for its length.

        Args:
            config: read from the folder unless given.
            linears: makes the linear maps; by default their weights stay plain.
            device: by default the target's.
            must_share: weights of the target that the head has to share.
        """
        config = config or cls.read_config(folder, target.config)
        checkpoint = cls.open_tensors(folder)
        cls.check(config, checkpoint, target.config)
        placement = Placement(target.dtype, device or target.device)
        limits = make_rotary_limits(config.ropes, target.context_length)
        with Weights.of(
            checkpoint,
            placement,
            linears or Linears(),
            label=f"loading {folder.name}",
            progress=progress,
            must_share=must_share,
        ) as weights:
            return cls._assemble(config, weights, limits, target, folder)

    @classmethod
    @abstractmethod
    def recognizes(cls, config: ConfigFile) -> bool:
        """Whether a config.json, with the tensors next to it, is of this kind of head."""

    @classmethod
    @abstractmethod
    def read_config(cls, folder: Path, target: LanguageModelConfig) -> Config:
        """Read config.json and check it against the target's."""

    @classmethod
    def open_tensors(cls, folder: Path) -> TensorStore:
        """Open the tensors of a checkpoint; no weights are read."""
        return open_unquantized(folder)

    @classmethod
    @abstractmethod
    def shapes(
        cls, config: Config, names: Collection[str], target: LanguageModelConfig
    ) -> tuple[Shapes, Shapes]:
        """Return the required and the optional tensors.

        Args:
            names: of the tensors of the checkpoint, whose writers call some differently.
        """

    @classmethod
    def check(cls, config: Config, checkpoint: TensorStore, target: LanguageModelConfig) -> None:
        """Raise unless the checkpoint, whose weights are not read, is one of this kind of head.

        Raises:
            DraftMismatch: the head was made for another target.
            TensorError: tensors are missing, unknown or of another shape.
        """
        checkpoint.check(*cls.shapes(config, checkpoint.tensors, target))

    @classmethod
    @abstractmethod
    def _assemble(
        cls,
        config: Config,
        weights: Weights,
        limits: RotaryLimits,
        target: LanguageModel,
        folder: Path,
    ) -> Self: ...

    @abstractmethod
    def fuse(self, aux_hidden_states: Tensor) -> Tensor:
        """Map aux hidden states [rows, width] to hidden states [rows, hidden] of its type."""

    def logits(self, normed: Tensor) -> Tensor:
        """Score the draft's vocabulary: [rows, draft_vocab] of the head's type, or wider."""
        return self.head(normed)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DraftHead(HiddenStateHead[Config]):
    """A head that drafts token by token.

    A row pairs the hidden state at position i with the token at i + 1, has rotary position i and
    predicts the token at i + 2. The first row after known text reads `fuse(aux_hidden_states)`; a
    row after a drafted token reads the recurrent output of the row before it, which is never fused
    again.
    """

    @abstractmethod
    def forward(
        self, ids: Tensor, hidden: Tensor, positions: Tensor, kv: KVView
    ) -> tuple[Tensor, Tensor]:
        """Run rows: ids [rows] i64 of the target's vocabulary, hidden [rows, hidden].

        Returns:
            What `logits` takes, and what the next row reads as `hidden`; both [rows, hidden].
        """

    def store_kv(self, ids: Tensor, hidden: Tensor, positions: Tensor, kv: PagedView) -> None:
        """Write the keys and values that `forward` would write."""
        self.forward(ids, hidden, positions, kv)
