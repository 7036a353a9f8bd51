"""The config.json of a draft that reads the keys and values of its target, such as Gemma 4's.

Every layer has the type of layers of the target, and reads what the last one of these stores.

Sources: google/gemma-4 assistants; transformers, `Gemma4AssistantConfig` and `Gemma4TextConfig`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from specdecode_engine.model.checkpoint.config_file import ConfigFile
from specdecode_engine.model.drafts.draft_config import HeadConfig
from specdecode_engine.model.kv.layer_map import FULL, SLIDING, LayerMap, LayerShape
from specdecode_engine.model.layers.rope import RopeConfig, parse_rope
from specdecode_engine.model.target.config import GELU_TANH, AuxHiddenStates, DecoderConfig
from specdecode_engine.model.target.language_model import LanguageModelConfig

ARCHITECTURES = ("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM")
PATTERN = 6  # by default every sixth layer sees everything, and the last one does
DEFAULTS: Mapping[str, object] = {
    "head_dim": 256,
    "global_head_dim": 512,
    "sliding_window": 512,
    "hidden_activation": GELU_TANH,
    "hidden_size_per_layer_input": 256,
    "max_position_embeddings": 131_072,
    "rope_parameters": {
        SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
        FULL: {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.25,
            "rope_theta": 1_000_000.0,
        },
    },
}
"""Of `text_config`, as in transformers."""


@dataclass(frozen=True, slots=True)
class Shortlist:
    """Which tokens are scored: those of the centroids that score best."""

    centroids: int
    chosen: int  # centroids
    tokens: int  # of each centroid

    @property
    def columns(self) -> int:
        """Tokens that are scored."""
        return self.chosen * self.tokens


@dataclass(frozen=True, slots=True)
class FrozenLayer:
    """A layer without keys and values of its own.

    Its window is that of the target's layer for the bonus token, without the bonus token itself.
    """

    owner: int  # the layer of the target whose keys and values it reads
    shape: LayerShape
    rope: RopeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenConfig(HeadConfig):
    """Layers that read keys and values of the target; `decoder` has the heads of the first one."""

    keeps_kv: ClassVar = False

    layers: tuple[FrozenLayer, ...]
    target_hidden_size: int
    shortlist: Shortlist | None  # None: all tokens are scored
    is_tied: bool  # the head is the embedding, which nothing else reads

    @property
    def layer_map(self) -> LayerMap:
        return LayerMap.build([layer.shape for layer in self.layers])

    @property
    def ropes(self) -> tuple[RopeConfig, ...]:
        return tuple(layer.rope for layer in self.layers)

    @property
    def recurrent_width(self) -> int:
        return self.target_hidden_size

    @property
    def facts(self) -> dict[str, object]:
        owners = [layer.owner for layer in self.layers]
        scored = self.vocab_size if self.shortlist is None else self.shortlist.columns
        return {"frozen_kv": {"target_layers": owners, "scored_tokens": scored}}

    @classmethod
    def load(cls, folder: Path, target: LanguageModelConfig) -> "FrozenConfig":
        """Read `folder`/config.json and check it against the target's."""
        file = ConfigFile.open(folder / "config.json")
        if file.architecture not in ARCHITECTURES:
            raise file.error("architectures", f"supported: {', '.join(ARCHITECTURES)}")
        section = file.section("text_config")
        if section is None:
            raise file.error("text_config", "it must describe the draft's layers")
        stated = {key: value for key, value in section.keys.items() if value is not None}
        text = ConfigFile(file.file, {**DEFAULTS, **stated}, section.prefix)
        _check_sizes(file, text, target)
        layers = _layers(text, target)
        shortlist = _shortlist(file, target.vocab_size)
        return cls(
            decoder=_decoder(text, layers[0].shape),
            rope=min((layer.rope for layer in layers), key=lambda one: one.trained_positions),
            num_hidden_layers=len(layers),
            vocab_size=target.vocab_size,
            draft_vocab_size=target.vocab_size if shortlist is None else shortlist.columns,
            aux_spec=AuxHiddenStates(final=True),
            layers=layers,
            target_hidden_size=target.decoder.hidden_size,
            shortlist=shortlist,
            is_tied=file.switch("tie_word_embeddings", True),
        )


def _check_sizes(file: ConfigFile, text: ConfigFile, target: LanguageModelConfig) -> None:
    for config, key, wanted in (
        (file, "backbone_hidden_size", target.decoder.hidden_size),
        (text, "vocab_size", target.vocab_size),
    ):
        if config.integer(key) != wanted:
            raise config.mismatch(key, f"the target's is {wanted}; use a draft of this target")
    remedy = "a draft that reads the target's keys and values has none; use another checkpoint"
    text.refuse("hidden_size_per_layer_input", 0, f"embeddings of each layer: {remedy}")
    text.refuse("enable_moe_block", False, f"experts: {remedy}")
    text.refuse("use_double_wide_mlp", False, f"wider MLPs: {remedy}")
    text.refuse("hidden_activation", GELU_TANH, f"only {GELU_TANH} is supported")
    layers = text.integer("num_hidden_layers")
    if text.integer("num_kv_shared_layers", layers, least=0) not in (0, layers):
        raise text.error("num_kv_shared_layers", f"all {layers} layers must share the target's")


def _layers(text: ConfigFile, target: LanguageModelConfig) -> tuple[FrozenLayer, ...]:
    heads = text.integer("num_attention_heads")
    layers = []
    for number, kind in enumerate(_layer_types(text)):
        owner = _owner(text, kind, target.layer_map)
        stored = target.layer_map.layers[owner]
        _check_heads(text, number, kind, heads, owner, target.layer_map)
        shape = LayerShape(
            kv_heads=stored.kv_heads,
            k_head_dim=stored.k_head_dim,
            v_head_dim=stored.v_head_dim,
            sliding_window=None if kind == FULL else _window(text, owner, stored.sliding_window),
        )
        layers.append(FrozenLayer(owner, shape, _rope(text, kind, stored.k_head_dim)))
    return tuple(layers)


def _layer_types(text: ConfigFile) -> list[str]:
    count = text.integer("num_hidden_layers")
    types = text.get("layer_types")
    if types is None:
        types = [SLIDING if number % PATTERN else FULL for number in range(1, count)] + [FULL]
    if not isinstance(types, list) or len(types) != count or {*map(str, types)} - {FULL, SLIDING}:
        raise text.error("layer_types", f"it must name {FULL} or {SLIDING} for {count} layers")
    return types


def _owner(text: ConfigFile, kind: str, layer_map: LayerMap) -> int:
    """Return the last layer of a type that stores keys and values."""
    of_kind = [
        spec.kv_owner
        for spec in layer_map.layers
        if (spec.sliding_window is None) == (kind == FULL) and spec.attention_chunk_size is None
    ]
    if not of_kind:
        raise text.mismatch(
            "layer_types", f"the target has no layer of type {kind}; use a draft of this target"
        )
    return of_kind[-1]


def _check_heads(
    text: ConfigFile, number: int, kind: str, heads: int, owner: int, layer_map: LayerMap
) -> None:
    """Raise unless a layer's queries fit the keys and values that it reads."""
    stored = layer_map.layers[owner]
    where = f"layer {owner} of the target, which layer {number} reads, has"
    for key, wanted in (("head_dim", stored.k_head_dim), ("num_key_value_heads", stored.kv_heads)):
        keys, name = _own_key(text, number, kind, key)
        if keys.integer(name, wanted) != wanted:
            raise keys.mismatch(name, f"{where} {wanted}; use a draft of this target")
    if heads % stored.kv_heads:
        raise text.mismatch(
            "num_attention_heads", f"{where} {stored.kv_heads} key heads, which must divide it"
        )


def _own_key(text: ConfigFile, number: int, kind: str, key: str) -> tuple[ConfigFile, str]:
    """Return where a size of one layer is stated: by layer, by type, or once for all."""
    by_layer = text.section("per_layer_config")
    if by_layer is not None:
        own = by_layer.section(str(number))
        return (text, key) if own is None or own.get(key) is None else (own, key)
    name = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}[key]
    is_global = kind == FULL and text.get(name) is not None
    if key == "num_key_value_heads":
        is_global = is_global and text.switch("attention_k_eq_v", False)
    return (text, name) if is_global else (text, key)


def _window(text: ConfigFile, owner: int, stored: int | None) -> int:
    window = text.integer("sliding_window", least=2)
    if window != stored:
        remedy = f"layer {owner} of the target has {stored}; use a draft of this target"
        raise text.mismatch("sliding_window", remedy)
    return window - 1


def _rope(text: ConfigFile, kind: str, head_dim: int) -> RopeConfig:
    text.refuse("rope_scaling", {}, "write it by layer type under rope_parameters")
    section = text.section("rope_parameters")
    by_type = None if section is None else section.section(kind)
    if by_type is None:
        raise text.error("rope_parameters", f"it must have {kind}")
    keys = {**text.keys, "rope_parameters": by_type.keys}
    return parse_rope(ConfigFile(text.file, keys, text.prefix), head_dim)


def _shortlist(file: ConfigFile, vocab_size: int) -> Shortlist | None:
    if not file.switch("use_ordered_embeddings", False):
        return None
    centroids = file.integer("num_centroids", 2048)
    if vocab_size % centroids:
        raise file.error("num_centroids", f"it must divide the {vocab_size} tokens")
    chosen = file.integer("centroid_intermediate_top_k", 32)
    if chosen > centroids:
        raise file.error("centroid_intermediate_top_k", f"there are {centroids} centroids")
    return Shortlist(centroids, chosen, vocab_size // centroids)


def _decoder(text: ConfigFile, first: LayerShape) -> DecoderConfig:
    has_bias = text.switch("attention_bias", False)
    return DecoderConfig(
        hidden_size=text.integer("hidden_size"),
        intermediate_size=text.integer("intermediate_size"),
        num_attention_heads=text.integer("num_attention_heads"),
        num_key_value_heads=first.kv_heads,
        head_dim=first.k_head_dim,
        rms_norm_eps=text.real("rms_norm_eps", 1e-6),
        qkv_bias=has_bias,
        output_bias=has_bias,
        mlp_bias=False,
        activation="gelu_tanh",
        has_output_norms=True,
        attention_scale=1.0,  # queries and keys are normed
    )
