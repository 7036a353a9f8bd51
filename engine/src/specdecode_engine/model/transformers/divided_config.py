"""The config of the part of a model of transformers that one rank has."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from specdecode_engine.model.target.recurrent_config import read_delta_layers
from specdecode_engine.model.target.sharding import CannotDivide, kv_heads_fault, remedy_of
from specdecode_engine.model.target.transformers_config import TransformersConfig, read_layer_map

Layers = dict[int, dict[str, Any]]
"""Values of single layers, which differ from those of the others, by the layer's number."""

HEADS, KV_HEADS = "num_attention_heads", "num_key_value_heads"
SIZES = (
    HEADS,
    "intermediate_size",
    "intermediate_size_mlp",
    "moe_intermediate_size",
    "shared_intermediate_size",
    "shared_expert_intermediate_size",
    "linear_num_key_heads",
    "linear_num_value_heads",
)
"""Keys of config.json, where it has them, that are divided."""


def divide_transformers_config(config: TransformersConfig, ranks: int) -> TransformersConfig:
    """Return the config of the part of one rank; it is the same on every rank.

    Raises:
        CannotDivide: the sizes cannot be divided.
    """
    if ranks == 1:
        return config
    file = config.folder / "config.json"
    text = config.copy_text()
    layers = _take_layers(text)
    if fault := _fault(text, layers, ranks):
        most = getattr(text, HEADS)
        possible = [n for n in range(1, most + 1) if _fault(text, layers, n) is None]
        raise CannotDivide(f"{file}: {fault}; {remedy_of(possible or [1])}")
    _divide(text, ranks)
    if layers:
        text.per_layer_config = {n: _divided_layer(own, ranks) for n, own in layers.items()}
    layer_map = read_layer_map(text)
    decoder = replace(
        config.decoder,
        num_attention_heads=config.decoder.num_attention_heads // ranks,
        num_key_value_heads=max(shape.kv_heads for shape in layer_map.shapes),
        intermediate_size=config.decoder.intermediate_size // ranks,
    )
    return replace(
        config,
        text=text,
        layer_map=layer_map,
        delta_layers=read_delta_layers(text),
        decoder=decoder,
    )


def _take_layers(text: Any) -> Layers:
    """Leave a config whose layers are alike; return what some have of their own (Gemma 4)."""
    if not getattr(text, "is_heterogeneous", False):
        return {}
    layers: Layers = text.to_dict()["per_layer_config"]
    text.per_layer_config = None
    return layers


def _divided_layer(own: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    sizes = {name: size // ranks for name, size in own.items() if name in SIZES}
    kv_heads = {name: max(own[name] // ranks, 1) for name in own if name == KV_HEADS}
    return {**own, **sizes, **kv_heads}


def _divide(text: Any, ranks: int) -> None:
    """Change a config of transformers; the size of a head stays."""
    if getattr(text, "head_dim", None) is None and getattr(text, "kv_lora_rank", None) is None:
        text.head_dim = text.hidden_size // getattr(text, HEADS)
    kv_heads = getattr(text, KV_HEADS, None)
    for name, size in list(_sizes(text)):
        setattr(text, name, size // ranks)
    if isinstance(kv_heads, int):
        setattr(text, KV_HEADS, max(kv_heads // ranks, 1))


def _fault(text: Any, layers: Layers, ranks: int) -> str | None:
    """Return why a model cannot be divided, None if its sizes can be."""
    of_layers = [pair for own in layers.values() for pair in own.items()]
    for name, size in (*_sizes(text), *(pair for pair in of_layers if pair[0] in SIZES)):
        if not isinstance(size, int):
            return f"{name} differs by layer, which cannot be divided among {ranks} ranks"
        if size % ranks:
            return f"{name} {size} cannot be divided among {ranks} ranks"
    kv_heads = [getattr(text, KV_HEADS, None), *(n for name, n in of_layers if name == KV_HEADS)]
    faults = (kv_heads_fault(number, ranks) for number in kv_heads if isinstance(number, int))
    return next((fault for fault in faults if fault is not None), None)


def _sizes(text: Any) -> Iterator[tuple[str, Any]]:
    """Yield what is divided, each size once: a model type may have it under two names."""
    names = {text.attribute_map.get(name, name): None for name in SIZES}
    for name in names:
        size = getattr(text, name, None)
        if size is not None:
            yield name, size
