"""The layer map of a config that transformers has read, with the defaults of its model type."""

from collections.abc import Sequence

from specdecode_engine.model.delta_states import DeltaLayers
from specdecode_engine.model.layer_map import (
    CHUNKED,
    FULL,
    LINEAR,
    SLIDING,
    LayerMap,
    LayerMapError,
    LayerShape,
    shared_owners,
)
from specdecode_kernels import DeltaShape

MOST_HEADS, MOST_ENTRIES, MOST_WIDTH = 1024, 256, 16
"""Heads of a gated delta net, entries of each, and inputs that its convolution reads."""


def read_layer_map(config: object) -> LayerMap:
    """Read the layers with attention from a text config of transformers.

    Sizes that differ by layer come from `per_layer_config` (Gemma 4: `global_head_dim`,
    `num_global_key_value_heads`), types from `layer_types`; a config without `layer_types` has its
    `sliding_window`, if any, in every layer (Mistral, Phi-3, StarCoder2).

    Raises:
        LayerMapError: a layer is not softmax attention over keys and values of all heads.
    """
    layers = _integer(config, "num_hidden_layers")
    every = _layer_types(config, layers)
    attending = [layer for layer, kind in enumerate(every) if kind != LINEAR]
    types = [every[layer] for layer in attending]
    shapes = [_shape(_layer(config, layer), every[layer], config) for layer in attending]
    num_shared = getattr(config, "num_kv_shared_layers", None) or 0
    return LayerMap.build(shapes, shared_owners(types, num_shared))


def read_delta_layers(config: object) -> DeltaLayers | None:
    """Read the gated delta nets of a text config of transformers; None without any.

    Raises:
        LayerMapError: sizes are missing or contradict each other.
    """
    types = getattr(config, "layer_types", None) or ()
    count = sum(kind == LINEAR for kind in types)
    if not count:
        return None
    if count == len(types):
        raise LayerMapError(f"layer_types has {LINEAR} alone; one layer at least must attend")
    shape = DeltaShape(
        k_heads=_integer(config, "linear_num_key_heads", MOST_HEADS),
        v_heads=_integer(config, "linear_num_value_heads", MOST_HEADS),
        k_dim=_integer(config, "linear_key_head_dim", MOST_ENTRIES),
        v_dim=_integer(config, "linear_value_head_dim", MOST_ENTRIES),
        conv_width=_integer(config, "linear_conv_kernel_dim", MOST_WIDTH),
    )
    if shape.v_heads % shape.k_heads:
        raise LayerMapError(
            f"linear_num_value_heads is {shape.v_heads}; it must be a multiple of the "
            f"{shape.k_heads} linear_num_key_heads"
        )
    return DeltaLayers(count, shape)


def _layer_types(config: object, layers: int) -> Sequence[str]:
    types = getattr(config, "layer_types", None)
    if types is None:
        return [FULL if getattr(config, "sliding_window", None) is None else SLIDING] * layers
    others = sorted(set(types) - {FULL, SLIDING, CHUNKED, LINEAR})
    if others:
        raise LayerMapError(
            f"layer_types has {', '.join(others)}; only {FULL}, {SLIDING}, {CHUNKED} and {LINEAR} "
            "are supported"
        )
    if len(types) != layers:
        raise LayerMapError(
            f"layer_types has {len(types)} entries for num_hidden_layers {layers}; give one each"
        )
    return list(types)


def _layer(config: object, layer: int) -> object:
    """Return the config of one layer, which is the model's unless it has its own values."""
    if not getattr(config, "is_heterogeneous", False):
        return config
    own: object = getattr(config, "per_layer_config")[layer]  # noqa: B009
    return own


def _shape(layer: object, kind: str, config: object) -> LayerShape:
    sliding_window = _integer(config, "sliding_window") if kind == SLIDING else None
    chunk_size = _integer(config, "attention_chunk_size") if kind == CHUNKED else None
    if getattr(layer, "kv_lora_rank", None) is not None:
        rank = _integer(layer, "kv_lora_rank")
        return LayerShape(
            kv_heads=1,
            k_head_dim=rank + _integer(layer, "qk_rope_head_dim"),
            v_head_dim=rank,
            sliding_window=sliding_window,
            attention_chunk_size=chunk_size,
            is_latent=True,
        )
    heads = _integer(layer, "num_attention_heads")
    head_dim = getattr(layer, "head_dim", None) or _integer(config, "hidden_size") // heads
    return LayerShape(
        kv_heads=getattr(layer, "num_key_value_heads", None) or heads,
        k_head_dim=head_dim,
        v_head_dim=getattr(layer, "v_head_dim", None) or head_dim,
        sliding_window=sliding_window,
        attention_chunk_size=chunk_size,
    )


def _integer(config: object, key: str, most: int | None = None) -> int:
    value = getattr(config, key, None)
    if not isinstance(value, int) or value < 1:
        raise LayerMapError(f"{key} is {value!r}; it must be a positive integer")
    if most is not None and value > most:
        raise LayerMapError(f"{key} is {value}; {most} at most are supported")
    return value
