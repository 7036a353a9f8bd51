"""What the config.json of a Llama checkpoint declares, checked, and what a draft reads of it."""

from dataclasses import dataclass
from pathlib import Path

import torch

from specdecode_engine.model.config_file import ConfigFile
from specdecode_engine.model.layer_map import LayerMap
from specdecode_engine.model.rope import RopeConfig, parse_rope

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")


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

    def layer_map(self, layers: int) -> LayerMap:
        """Return where `layers` such layers keep their keys and values."""
        return LayerMap.uniform(layers, self.num_key_value_heads, self.head_dim)


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """A decoder-only model of Llama's shape; names as in config.json where it has them."""

    vocab_size: int
    num_hidden_layers: int
    decoder: DecoderConfig
    rope: RopeConfig
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    dtype: torch.dtype | None  # None: not in config.json; the tensors have it

    @classmethod
    def load(cls, folder: Path) -> "LlamaConfig":
        """Read `folder`/config.json; refuse what our forward pass does not compute."""
        config = ConfigFile.open(folder / "config.json")
        architecture = _architecture(config)
        _refuse_unsupported(config, architecture)
        decoder = parse_decoder(config, always_qkv_bias=architecture == "Qwen2ForCausalLM")
        bos = config.ids("bos_token_id")
        return cls(
            vocab_size=config.integer("vocab_size"),
            num_hidden_layers=config.integer("num_hidden_layers"),
            decoder=decoder,
            rope=parse_rope(config, decoder.head_dim),
            tie_word_embeddings=config.switch("tie_word_embeddings", False),
            bos_token_id=bos[0] if bos else None,
            eos_token_ids=_eos_token_ids(config),
            dtype=config.dtype(),
        )

    @property
    def layer_map(self) -> LayerMap:
        """Where each layer keeps its keys and values."""
        return self.decoder.layer_map(self.num_hidden_layers)

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


def parse_decoder(config: ConfigFile, *, always_qkv_bias: bool = False) -> DecoderConfig:
    """Read the keys that describe one decoder layer."""
    config.refuse("hidden_act", "silu", "only silu is supported")
    config.refuse("quantization_config", {}, "convert the weights to an unquantized type")
    hidden_size = config.integer("hidden_size")
    heads = config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise config.error("num_key_value_heads", f"it must divide num_attention_heads {heads}")
    if config.get("head_dim") is None and hidden_size % heads:
        raise config.error(
            "head_dim", f"hidden_size {hidden_size} is not a multiple of {heads} heads"
        )
    head_dim = config.integer("head_dim", hidden_size // heads)
    if head_dim % 2:
        raise config.error("head_dim", "rotary positions need an even head dimension")
    attention_bias = config.switch("attention_bias", False)
    return DecoderConfig(
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=config.real("rms_norm_eps", 1e-6),
        qkv_bias=attention_bias or always_qkv_bias,
        output_bias=attention_bias and not always_qkv_bias,
        mlp_bias=config.switch("mlp_bias", False),
    )


def refuse_windows(config: ConfigFile, *, has_switch: bool) -> None:
    """Raise if attention is limited to a window; with a switch, its width alone means nothing."""
    sliding = "sliding-window attention is not supported; use a checkpoint without it"
    if not has_switch:
        config.refuse("sliding_window", False, sliding)
    config.refuse("use_sliding_window", False, sliding)
    layer_types = config.get("layer_types")
    if isinstance(layer_types, list) and set(layer_types) - {"full_attention"}:
        raise config.error("layer_types", "only full_attention is supported")


def _architecture(config: ConfigFile) -> str:
    names = config.get("architectures")
    if isinstance(names, list) and len(names) == 1 and names[0] in ARCHITECTURES:
        return str(names[0])
    raise config.error("architectures", f"supported: one of {', '.join(ARCHITECTURES)}")


def _refuse_unsupported(config: ConfigFile, architecture: str) -> None:
    refuse_windows(config, has_switch=architecture == "Qwen2ForCausalLM")
    if architecture == "LlamaForCausalLM":
        return
    # transformers fills these keys with defaults that differ from Llama's.
    config.integer("num_key_value_heads")
    if architecture == "MistralForCausalLM" and "sliding_window" not in config.keys:
        raise config.error("sliding_window", "Mistral's default is a window; set null for none")


def _eos_token_ids(config: ConfigFile) -> tuple[int, ...]:
    ids = list(config.ids("eos_token_id"))
    generation = config.file.with_name("generation_config.json")
    if generation.exists():
        ids += ConfigFile.open(generation).ids("eos_token_id")
    return tuple(dict.fromkeys(ids))
