"""The layer map of a config that transformers has read, with the defaults of its model type."""

from collections.abc import Sequence

from specdecode_engine.model.layer_map import (
    CHUNKED,
    FULL,
    SLIDING,
    LayerMap,
    LayerMapError,
    LayerShape,
    shared_owners,
)


def read_layer_map(config: object) -> LayerMap:
    """Read the attention of every layer from a text config of transformers.

    Sizes that differ by layer come from `per_layer_config` (Gemma 4: `global_head_dim`,
    `num_global_key_value_heads`), types from `layer_types`; a config without `layer_types` has its
    `sliding_window`, if any, in every layer (Mistral, Phi-3, StarCoder2).

    Raises:
        LayerMapError: a layer is not softmax attention over keys and values of all heads.
    """
    if getattr(config, "kv_lora_rank", None) is not None:
        raise LayerMapError("kv_lora_rank is set: multi-head latent attention is not supported")
    layers = _integer(config, "num_hidden_layers")
    types = _layer_types(config, layers)
    shapes = [_shape(_layer(config, layer), kind, config) for layer, kind in enumerate(types)]
    num_shared = getattr(config, "num_kv_shared_layers", None) or 0
    return LayerMap.build(shapes, shared_owners(types, num_shared))


def _layer_types(config: object, layers: int) -> Sequence[str]:
    types = getattr(config, "layer_types", None)
    if types is None:
        return [FULL if getattr(config, "sliding_window", None) is None else SLIDING] * layers
    others = sorted(set(types) - {FULL, SLIDING, CHUNKED})
    if others:
        raise LayerMapError(
            f"layer_types has {', '.join(others)}; only {FULL}, {SLIDING} and {CHUNKED} are "
            "supported"
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
    heads = _integer(layer, "num_attention_heads")
    head_dim = getattr(layer, "head_dim", None) or _integer(config, "hidden_size") // heads
    return LayerShape(
        kv_heads=getattr(layer, "num_key_value_heads", None) or heads,
        k_head_dim=head_dim,
        v_head_dim=getattr(layer, "v_head_dim", None) or head_dim,
        sliding_window=_integer(config, "sliding_window") if kind == SLIDING else None,
        attention_chunk_size=_integer(config, "attention_chunk_size") if kind == CHUNKED else None,
    )


def _integer(config: object, key: str) -> int:
    value = getattr(config, key, None)
    if not isinstance(value, int) or value < 1:
        raise LayerMapError(f"{key} is {value!r}; it must be a positive integer")
    return value
