"""What the config.json of a Llama or a close relative declares, checked; what a draft reads of it.

Families differ from Llama in few switches. Where config.json leaves one out, the default is that of
the family in transformers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import torch

from specdecode_engine.model.config_file import ConfigFile
from specdecode_engine.model.layer_map import FULL, SLIDING, LayerMap
from specdecode_engine.model.quantized.config import Quantization, read_quantization
from specdecode_engine.model.rope import RopeConfig, parse_rope
from specdecode_engine.model.sparse_mlp import ExpertTensors, SparseMlpConfig

DEFAULT_WINDOW = 4096
DEFAULT_MAX_WINDOW_LAYERS = 28
GPT_OSS_WINDOW = 128
GPT_OSS_ROPE: Mapping[str, object] = {
    "rope_type": "yarn",
    "rope_theta": 150_000.0,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


class Windows(Enum):
    """Which keys of config.json limit attention to a sliding window."""

    NONE = "none"  # a window is refused
    ALL = "all"  # sliding_window holds for every layer
    SWITCH = "switch"  # use_sliding_window; then layer_types, or layers from max_window_layers on
    ALTERNATE = "alternate"  # layer_types; by default every other layer from the first on


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How a model family differs from Llama."""

    always_qkv_bias: bool = False
    attention_bias: bool = False  # default
    qk_norm: bool = False
    sinks: bool = False
    windows: Windows = Windows.NONE
    head_dim: int | None = None  # default; None: hidden_size / num_attention_heads
    rope: Mapping[str, object] = field(default_factory=dict)  # defaults of rope_parameters
    experts: ExpertTensors | None = None  # of a mixture


LLAMA = Family()
FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": Family(windows=Windows.ALL),
    "Qwen2ForCausalLM": Family(always_qkv_bias=True, windows=Windows.SWITCH),
    "Qwen3ForCausalLM": Family(qk_norm=True, windows=Windows.SWITCH, head_dim=128),
    "Qwen3MoeForCausalLM": Family(qk_norm=True, experts=ExpertTensors.SEPARATE),
    "GptOssForCausalLM": Family(
        attention_bias=True,
        sinks=True,
        windows=Windows.ALTERNATE,
        head_dim=64,
        rope=GPT_OSS_ROPE,
        experts=ExpertTensors.STACKED,
    ),
}
"""By the name under `architectures`."""


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

    def layer_map(self, layers: int, windows: Sequence[int | None] = ()) -> LayerMap:
        """Return where `layers` such layers keep their keys and values.

        Args:
            windows: of each layer; empty: none has one.
        """
        return LayerMap.uniform(layers, self.num_key_value_heads, self.head_dim, windows)


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """A decoder-only model of Llama's shape; names as in config.json where it has them."""

    vocab_size: int
    num_hidden_layers: int
    decoder: DecoderConfig
    rope: RopeConfig
    sliding_windows: tuple[int | None, ...]  # by layer: the latest positions seen; None: all
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    dtype: torch.dtype | None  # None: not in config.json; the tensors have it
    quantization: Quantization | None = None  # of the stored weights; None: they are plain
    sparse_mlp: SparseMlpConfig | None = None  # of the layers with experts

    @classmethod
    def load(cls, folder: Path) -> "LlamaConfig":
        """Read `folder`/config.json; refuse what our forward pass does not compute."""
        return cls.read(ConfigFile.open(folder / "config.json"))

    @classmethod
    def read(cls, config: ConfigFile) -> "LlamaConfig":
        """As `load`, of a file that has been read."""
        family = _family(config)
        decoder = parse_decoder(config, family)
        layers = config.integer("num_hidden_layers")
        bos = config.ids("bos_token_id")
        windows = _sliding_windows(config, family.windows, layers)
        return cls(
            vocab_size=config.integer("vocab_size"),
            num_hidden_layers=layers,
            decoder=decoder,
            rope=parse_rope(config, decoder.head_dim, family.rope),
            sliding_windows=windows,
            tie_word_embeddings=config.switch("tie_word_embeddings", False),
            bos_token_id=bos[0] if bos else None,
            eos_token_ids=read_eos_token_ids(config),
            dtype=config.dtype(),
            quantization=read_quantization(config),
            sparse_mlp=SparseMlpConfig.read(config, layers, family.experts)
            if family.experts is not None
            else None,
        )

    def sparse_mlp_of(self, layer: int) -> SparseMlpConfig | None:
        """Return the experts of a layer; None: its MLP is dense."""
        has_experts = self.sparse_mlp is not None and layer in self.sparse_mlp.sparse_layers
        return self.sparse_mlp if has_experts else None

    @property
    def layer_map(self) -> LayerMap:
        """Where each layer keeps its keys and values."""
        return self.decoder.layer_map(self.num_hidden_layers, self.sliding_windows)

    @property
    def max_position_embeddings(self) -> int:
        """Longest text config.json names, before any stretching of positions."""
        return self.rope.max_position_embeddings


@dataclass(frozen=True, slots=True)
class AuxHiddenStates:
    """Which hidden states of the target a draft reads, per row.

    `layers` names layers, ascending, whose outputs are read, concatenated and not normed; `final`
    selects the last hidden state instead, after the final norm. With neither the draft reads none.
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


def parse_decoder(config: ConfigFile, family: Family = LLAMA) -> DecoderConfig:
    """Read the keys that describe one decoder layer."""
    config.refuse("hidden_act", "silu", "only silu is supported")
    hidden_size = config.integer("hidden_size")
    heads = config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise config.error("num_key_value_heads", f"it must divide num_attention_heads {heads}")
    head_dim = _head_dim(config, family, hidden_size, heads)
    attention_bias = config.switch("attention_bias", family.attention_bias)
    return DecoderConfig(
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
    )


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
        return _windows_by_type(config, by_default, GPT_OSS_WINDOW)
    if windows is Windows.SWITCH and config.switch("use_sliding_window", False):
        first = config.integer("max_window_layers", DEFAULT_MAX_WINDOW_LAYERS, least=0)
        by_default = [FULL if number < first else SLIDING for number in range(layers)]
        return _windows_by_type(config, by_default, DEFAULT_WINDOW)
    _refuse_layer_types(config)
    is_full = "sliding_window" in config.keys and config.get("sliding_window") is None
    if windows is Windows.SWITCH or is_full:
        return (None,) * layers
    return (config.integer("sliding_window", DEFAULT_WINDOW),) * layers


def _windows_by_type(
    config: ConfigFile, default: Sequence[str], width: int
) -> tuple[int | None, ...]:
    """Return the window of each layer, by `layer_types` or, without it, by default types."""
    types = default if config.get("layer_types") is None else config.get("layer_types")
    layers = len(default)
    if not isinstance(types, list) or len(types) != layers or {*map(str, types)} - {FULL, SLIDING}:
        raise config.error("layer_types", f"it must name {FULL} or {SLIDING} for {layers} layers")
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
    family = FAMILIES[names[0]]
    if family is not LLAMA:  # transformers' default is another number for each family
        config.integer("num_key_value_heads")
    return family


def read_eos_token_ids(config: ConfigFile, *parts: ConfigFile) -> tuple[int, ...]:
    """Read what ends a text: of a config, of its parts, and of the generation config next to it."""
    ids = [token for each in (config, *parts) for token in each.ids("eos_token_id")]
    generation = config.file.with_name("generation_config.json")
    if generation.exists():
        ids += ConfigFile.open(generation).ids("eos_token_id")
    return tuple(dict.fromkeys(ids))
