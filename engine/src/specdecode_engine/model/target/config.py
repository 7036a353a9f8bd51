"""What the config.json of a Llama or a close relative declares, checked; what a draft reads of it.

Families differ from Llama in few switches. Where config.json leaves one out, the default is that of
the family in transformers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import torch

from specdecode_engine.model.checkpoint.config_file import ConfigFile
from specdecode_engine.model.checkpoint.quantized.config import Quantization, read_quantization
from specdecode_engine.model.kv.delta_states import DeltaLayers
from specdecode_engine.model.kv.layer_map import FULL, SLIDING, LayerMap, LayerShape
from specdecode_engine.model.layers.latent_config import LatentConfig
from specdecode_engine.model.layers.rope import RopeConfig, parse_local_rope, parse_rope
from specdecode_engine.model.layers.sparse_mlp import SparseMlpConfig
from specdecode_engine.model.target.families import FAMILIES, LLAMA, Family, Windows

DEFAULT_WINDOW = 4096
DEFAULT_MAX_WINDOW_LAYERS = 28
GPT_OSS_WINDOW = 128
GELU_TANH = "gelu_pytorch_tanh"
Activation = Literal["silu", "gelu_tanh"]
ACTIVATIONS: Mapping[str, Activation] = {"silu": "silu", "swish": "silu", GELU_TANH: "gelu_tanh"}
"""Gates of dense MLPs, by their names in transformers."""

EMBEDDED = -1
"""Stands for the embedding where outputs of layers are named."""


@dataclass(frozen=True, slots=True)
class LayerNames:
    """What tensors of a decoder layer are called that families name differently."""

    mlp_norm: str = "post_attention_layernorm"
    sinks: str = "sinks"


LLAMA_NAMES = LayerNames()


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The sizes and switches of one decoder layer; a draft head's layer has them too."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool = False  # RMSNorm over head_dim of every query and key head, before RoPE
    sinks: bool = False  # one more logit of every query head, without a value
    activation: Activation = "silu"
    is_norm_weight_less_one: bool = False  # norms scale by 1 plus their stored weight, as in Gemma
    has_output_norms: bool = False  # also of what attention and the MLP add, as in Gemma
    attention_scale: float | None = None  # of scores; None: head_dim ** -0.5
    attention_softcap: float | None = None  # of scores
    rotary_dim: int | None = None  # entries of each head, the first ones, that turn; None: all
    has_output_gate: bool = False  # a sigmoid of as many entries as queries scales what they read
    has_head_gate: bool = False  # a sigmoid of one entry for each query head does
    own_v_head_dim: int | None = None  # entries of a head of values; None: head_dim
    value_scale: float | None = None  # of values
    names: LayerNames = LLAMA_NAMES
    latent: LatentConfig | None = None  # then head_dim is that of what turns

    @property
    def v_head_dim(self) -> int:
        """Entries of a head of values."""
        return self.own_v_head_dim or self.head_dim

    def layer_map(self, layers: int, windows: Sequence[int | None] = ()) -> LayerMap:
        """Return where `layers` such layers keep their keys and values.

        Args:
            windows: of each layer; empty: none has one.
        """
        if self.latent is not None:
            sizes = self.latent.sizes
            shape = LayerShape(
                kv_heads=1, k_head_dim=sizes.key, v_head_dim=sizes.kv_lora_rank, is_latent=True
            )
            return LayerMap.build(
                [replace(shape, sliding_window=window) for window in windows or [None] * layers]
            )
        heads = self.num_key_value_heads
        return LayerMap.uniform(layers, heads, self.head_dim, windows, self.v_head_dim)


@dataclass(frozen=True, slots=True)
class AuxHiddenStates:
    """Which hidden states of the target a draft reads, per row.

    `layers` names layers, ascending, whose outputs are read, concatenated and not normed; EMBEDDED
    among them is what the first layer reads. `final` selects the last hidden state instead, after
    the final norm. With neither the draft reads none.
    """

    layers: tuple[int, ...] = ()
    final: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether the draft reads no hidden state of the target."""
        return not self.layers and not self.final

    def width(self, hidden_size: int) -> int:
        """Values per row of a target of that hidden size."""
        return hidden_size * (1 if self.final else len(self.layers))


NO_HIDDEN_STATES = AuxHiddenStates()


class TokenDraft:
    """What a language model declares as a draft: it reads no hidden states of a target."""

    __slots__ = ()

    vocab_size: int
    delta_layers: DeltaLayers | None  # recurrent layers; only targets may have any
    aux_spec: ClassVar = NO_HIDDEN_STATES
    keeps_kv: ClassVar = True  # keys and values of its own
    recurrent_width: ClassVar = 0
    verifier: ClassVar = None
    proposed_draft_steps: ClassVar = None
    max_steps: ClassVar = None
    facts: ClassVar[Mapping[str, object]] = {}

    @property
    def draft_vocab_size(self) -> int:
        return self.vocab_size


@dataclass(frozen=True, slots=True)
class LlamaConfig(TokenDraft):
    """A decoder-only model of Llama's shape; names as in config.json where it has them."""

    vocab_size: int
    num_hidden_layers: int
    decoder: DecoderConfig
    ropes: tuple[RopeConfig, ...]  # of all layers; or of those that see everything, and the others
    sliding_windows: tuple[int | None, ...]  # by layer: the latest positions seen; None: all
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    dtype: torch.dtype | None  # None: not in config.json; the tensors have it
    quantization: Quantization | None = None  # of the stored weights; None: they are plain
    sparse_mlp: SparseMlpConfig | None = None  # of the layers with experts
    embedding_scale: float | None = None  # what embeddings are multiplied by, in their type
    logit_softcap: float | None = None
    is_wrapped: bool = False  # the text model is part of a model for several kinds of input
    architecture: str = ""  # as in config.json
    own_head_rows: int | None = None  # of a head that is divided among ranks; None: it is whole
    delta_layers: None = None

    @classmethod
    def load(cls, folder: Path) -> "LlamaConfig":
        """Read `folder`/config.json; refuse what our forward pass does not compute."""
        return cls.read(ConfigFile.open(folder / "config.json"))

    @classmethod
    def read(cls, file: ConfigFile) -> "LlamaConfig":
        """As `load`, of a file that has been read."""
        family = _family(file)
        config = family.keys_of(file)
        if family is not LLAMA:  # transformers' default is another number for each family
            config.integer("num_key_value_heads")
        decoder = parse_decoder(config, family)
        layers = config.integer("num_hidden_layers")
        bos, vocab_size = config.ids("bos_token_id"), config.integer("vocab_size")
        return cls(
            vocab_size=vocab_size,
            num_hidden_layers=layers,
            decoder=decoder,
            ropes=_ropes(config, family, decoder.head_dim),
            sliding_windows=_sliding_windows(config, family.windows, layers),
            tie_word_embeddings=config.switch("tie_word_embeddings", False),
            bos_token_id=bos[0] if bos else None,
            eos_token_ids=read_eos_token_ids(vocab_size, file, config),
            dtype=file.dtype() or config.dtype(),
            quantization=read_quantization(file),
            sparse_mlp=SparseMlpConfig.read(config, layers, family.experts)
            if family.experts is not None
            else None,
            embedding_scale=decoder.hidden_size**0.5 if family.is_gemma else None,
            logit_softcap=_softcap(config, "final_logit_softcapping") if family.is_gemma else None,
            is_wrapped=family.text_section is not None,
            architecture=file.architecture,
        )

    def sparse_mlp_of(self, layer: int) -> SparseMlpConfig | None:
        """Return the experts of a layer; None: its MLP is dense."""
        has_experts = self.sparse_mlp is not None and layer in self.sparse_mlp.sparse_layers
        return self.sparse_mlp if has_experts else None

    @property
    def head_rows(self) -> int:
        """Tokens that the head of one rank scores."""
        return self.own_head_rows or self.vocab_size

    @property
    def layer_map(self) -> LayerMap:
        """Where each layer keeps its keys and values."""
        return self.decoder.layer_map(self.num_hidden_layers, self.sliding_windows)

    @property
    def rope(self) -> RopeConfig:
        """How far positions reach in every layer: the angles that are stretched least."""
        return min(self.ropes, key=lambda rope: rope.trained_positions)

    @property
    def rope_indices(self) -> tuple[int, ...]:
        """Which of `ropes` each layer has."""
        last = len(self.ropes) - 1
        return tuple([0 if window is None else last for window in self.sliding_windows])

    @property
    def max_position_embeddings(self) -> int:
        """Longest text config.json names, before any stretching of positions."""
        return self.rope.max_position_embeddings


def parse_decoder(config: ConfigFile, family: Family = LLAMA) -> DecoderConfig:
    """Read the keys that describe one decoder layer."""
    if family.is_gemma:
        config.refuse("hidden_activation", GELU_TANH, f"only {GELU_TANH} is supported")
        config.refuse("use_bidirectional_attention", False, "text is generated causally only")
    hidden_size = config.integer("hidden_size")
    heads = config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise config.error("num_key_value_heads", f"it must divide num_attention_heads {heads}")
    head_dim = _head_dim(config, family, hidden_size, heads)
    attention_bias = config.switch("attention_bias", family.attention_bias)
    decoder = DecoderConfig(
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=config.real("rms_norm_eps", 1e-6),
        qkv_bias=attention_bias or family.always_qkv_bias,
        output_bias=attention_bias and not family.always_qkv_bias,
        mlp_bias=config.switch("mlp_bias", False),
        qk_norm=family.qk_norm,
        sinks=family.sinks,
        activation=_activation(config, family),
    )
    return _as_in_gemma(decoder, config, family) if family.is_gemma else decoder


def _activation(config: ConfigFile, family: Family) -> Activation:
    """Return the gate of MLPs; that of experts is silu."""
    if family.is_gemma:
        return "gelu_tanh"
    name = "silu" if config.get("hidden_act") is None else config.get("hidden_act")
    known = [one for one in ACTIVATIONS if family.experts is None or ACTIVATIONS[one] == "silu"]
    if name not in known:
        raise config.error("hidden_act", f"supported: {', '.join(known)}")
    return ACTIVATIONS[str(name)]


def _as_in_gemma(decoder: DecoderConfig, config: ConfigFile, family: Family) -> DecoderConfig:
    softcap = "attn_logit_softcapping"
    if family.qk_norm:
        config.refuse(softcap, None, "norms of query and key heads replace it; remove the key")
    return replace(
        decoder,
        is_norm_weight_less_one=True,
        has_output_norms=True,
        attention_scale=config.real("query_pre_attn_scalar") ** -0.5,
        attention_softcap=_softcap(config, softcap),
    )


def _softcap(config: ConfigFile, key: str) -> float | None:
    return None if config.get(key) is None else config.real(key)


def _ropes(config: ConfigFile, family: Family, head_dim: int) -> tuple[RopeConfig, ...]:
    if family.has_local_rope:
        return parse_local_rope(config, head_dim)
    return (parse_rope(config, head_dim, family.rope),)


def refuse_windows(config: ConfigFile) -> None:
    """Raise if attention is limited to a window; with a switch, its width alone means nothing."""
    remedy = "this architecture has no sliding windows; use a checkpoint without them"
    if config.get("use_sliding_window") is None:
        config.refuse("sliding_window", False, remedy)
    config.refuse("use_sliding_window", False, remedy)
    _refuse_layer_types(config)


def _sliding_windows(config: ConfigFile, windows: Windows, layers: int) -> tuple[int | None, ...]:
    if windows is Windows.NONE:
        refuse_windows(config)
        return (None,) * layers
    if windows is Windows.ALTERNATE:
        by_default = [(SLIDING, FULL)[number % 2] for number in range(layers)]
        return windows_by_type(config, by_default, GPT_OSS_WINDOW)
    if windows is Windows.PATTERN:
        period = config.integer("sliding_window_pattern")
        by_default = [SLIDING if number % period else FULL for number in range(1, layers + 1)]
        return windows_by_type(config, by_default, DEFAULT_WINDOW)
    if windows is Windows.SWITCH and config.switch("use_sliding_window", False):
        first = config.integer("max_window_layers", DEFAULT_MAX_WINDOW_LAYERS, least=0)
        by_default = [FULL if number < first else SLIDING for number in range(layers)]
        return windows_by_type(config, by_default, DEFAULT_WINDOW)
    _refuse_layer_types(config)
    is_full = "sliding_window" in config.keys and config.get("sliding_window") is None
    if windows is Windows.SWITCH or is_full:
        return (None,) * layers
    return (config.integer("sliding_window", DEFAULT_WINDOW),) * layers


def windows_by_type(
    config: ConfigFile, default: Sequence[str], width: int | None = None
) -> tuple[int | None, ...]:
    """Return the window of each layer, by `layer_types` or, without it, by default types.

    Args:
        width: of windows, where `sliding_window` is absent; None: it must be there.
    """
    types = default if config.get("layer_types") is None else config.get("layer_types")
    layers = len(default)
    if not isinstance(types, list) or len(types) != layers or {*map(str, types)} - {FULL, SLIDING}:
        raise config.error("layer_types", f"it must name {FULL} or {SLIDING} for {layers} layers")
    if SLIDING not in types and config.get("sliding_window") is None:
        return (None,) * layers
    width = config.integer("sliding_window", width)
    return tuple(width if kind == SLIDING else None for kind in types)


def _refuse_layer_types(config: ConfigFile) -> None:
    layer_types = config.get("layer_types")
    if isinstance(layer_types, list) and set(layer_types) - {FULL}:
        raise config.error("layer_types", f"only {FULL} is supported")


def _head_dim(config: ConfigFile, family: Family, hidden_size: int, heads: int) -> int:
    default = family.head_dim
    if default is None and config.get("head_dim") is None and hidden_size % heads:
        raise config.error(
            "head_dim", f"hidden_size {hidden_size} is not a multiple of {heads} heads"
        )
    head_dim = config.integer("head_dim", default or hidden_size // heads)
    if head_dim % 2:
        raise config.error("head_dim", "rotary positions need an even head dimension")
    return head_dim


def _family(config: ConfigFile) -> Family:
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or names[0] not in FAMILIES:
        raise config.error("architectures", f"supported: one of {', '.join(FAMILIES)}")
    return FAMILIES[names[0]]


def read_eos_token_ids(vocab_size: int, config: ConfigFile, *parts: ConfigFile) -> tuple[int, ...]:
    """Read what ends a text: of a config, of its parts, and of the generation config next to it.

    Ids outside the vocabulary are left out: no model generates them, and some checkpoints have -1
    for none.
    """
    ids = [token for each in (config, *parts) for token in each.ids("eos_token_id")]
    generation = config.file.with_name("generation_config.json")
    if generation.exists():
        ids += ConfigFile.open(generation).ids("eos_token_id")
    return tuple(token for token in dict.fromkeys(ids) if 0 <= token < vocab_size)
