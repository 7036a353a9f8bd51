"""The config of a draft: of a language model, or of a head over hidden states of the target."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from specdecode_engine.model.checkpoint.config_file import ConfigFile
from specdecode_engine.model.drafts.speculators import Verifier
from specdecode_engine.model.kv.kv_cache import kv_bytes
from specdecode_engine.model.kv.layer_map import LayerMap
from specdecode_engine.model.layers.rope import RopeConfig
from specdecode_engine.model.layers.sparse_mlp import SparseMlpConfig
from specdecode_engine.model.target.config import AuxHiddenStates, DecoderConfig
from specdecode_engine.model.target.language_model import LanguageModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadConfig:
    """Decoder layers over hidden states of the target; names as in config.json where it has them.

    Rotary frequencies are the head's own, which it was trained with; its max_position_embeddings
    is ignored, since positions follow the target.
    """

    delta_layers: ClassVar = None
    dtype: ClassVar = None  # that of the target
    quantization: ClassVar = None  # heads with quantized weights are refused
    keeps_kv: ClassVar = True

    decoder: DecoderConfig
    rope: RopeConfig
    num_hidden_layers: int
    vocab_size: int
    draft_vocab_size: int
    aux_spec: AuxHiddenStates
    sliding_windows: tuple[int | None, ...] = ()  # by layer, as in a target; empty: none has one
    verifier: Verifier | None = None  # the target that config.json names
    proposed_draft_steps: int | None = None  # by the authors
    sparse_mlp: SparseMlpConfig | None = None  # the layers' experts; None: their MLPs are dense

    @property
    def layer_map(self) -> LayerMap:
        """Where each layer keeps its keys and values."""
        return self.decoder.layer_map(self.num_hidden_layers, self.sliding_windows)

    @property
    def ropes(self) -> tuple[RopeConfig, ...]:
        """Angles of all layers."""
        return (self.rope,)

    @property
    def recurrent_width(self) -> int:
        """Values of its own output that the row after a drafted token reads."""
        return self.decoder.hidden_size

    @property
    def max_steps(self) -> int | None:
        """Tokens that the head can draft; None: any number."""
        return None

    @property
    def facts(self) -> Mapping[str, object]:
        """What was understood of the checkpoint: fields of /server_info."""
        return {}


DraftConfig = LanguageModelConfig | HeadConfig


def read_mask_token(config: ConfigFile, key: str, vocab_size: int) -> int:
    """Return the token of the positions of a block whose tokens are not known yet."""
    if config.get(key) is None:
        raise config.error(key, "set it to the token of masked positions in the draft's training")
    token = config.integer(key, least=0)
    if token >= vocab_size:
        raise config.mismatch(key, f"the target's vocabulary has {vocab_size} tokens")
    return token


def cached_token_bytes(config: DraftConfig, dtype: torch.dtype) -> int:
    """Return the bytes that one token takes in the KV cache of a model, if it has one."""
    return kv_bytes(config.layer_map, 1, dtype) if config.keeps_kv else 0
