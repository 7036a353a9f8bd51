"""What the config.json of a model that transformers computes declares, as the engine needs it."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch

from specdecode_engine.model.checkpoint.config_file import CheckpointError, ConfigFile
from specdecode_engine.model.checkpoint.quantized.config import Quantization, read_quantization
from specdecode_engine.model.kv.delta_states import DeltaLayers
from specdecode_engine.model.kv.layer_map import (
    CHUNKED,
    FULL,
    RECURRENT,
    SLIDING,
    LayerMap,
    LayerMapError,
    LayerShape,
    shared_owners,
)
from specdecode_engine.model.layers.rope import RopeConfig
from specdecode_engine.model.layers.rope_keys import refuse_dropped
from specdecode_engine.model.target.config import DecoderConfig, TokenDraft, read_eos_token_ids
from specdecode_engine.model.target.recurrent_config import positive, read_delta_layers

OTHER_NAMES = {"kimi_k2": "deepseek_v3"}
"""Model types whose name only code of the checkpoint knows, which is never run."""


class UnsupportedModel(CheckpointError):
    """A model type that transformers can load and we cannot compute; the message has the reason."""


@dataclass(frozen=True, slots=True)
class TransformersConfig(TokenDraft):
    """A decoder-only model; names as in config.json where it has them."""

    sparse_mlp: ClassVar = None  # experts are recognized in the modules

    folder: Path
    model_type: str  # of the text model
    vocab_size: int
    num_hidden_layers: int
    decoder: DecoderConfig
    ropes: tuple[RopeConfig, ...]  # of the layer types, one where all layers share it
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    dtype: torch.dtype | None  # None: not in config.json; the tensors have it
    layer_map: LayerMap
    is_wrapped: bool  # the text model is part of a model for several kinds of input
    text: Any = field(repr=False, compare=False)  # as transformers read it; see `copy_text`
    quantization: Quantization | None = None  # of the stored weights; None: they are plain
    architecture: str = ""  # as in config.json
    delta_layers: DeltaLayers | None = None  # recurrent ones

    @classmethod
    def load(cls, folder: Path) -> "TransformersConfig":
        """Read `folder`/config.json; refuse what transformers has no causal language model for."""
        file = ConfigFile.open(folder / "config.json")
        text = _read_text_config(file)
        keys = _keys(file, text)
        hidden_size = keys.integer("hidden_size")
        layer_map, delta_layers = _layers(file, text)
        widest = max(layer_map.shapes, key=lambda shape: shape.k_head_dim)
        bos, vocab_size = keys.ids("bos_token_id"), keys.integer("vocab_size")
        return cls(
            folder=folder,
            model_type=text.model_type,
            vocab_size=vocab_size,
            num_hidden_layers=keys.integer("num_hidden_layers"),
            decoder=DecoderConfig(
                hidden_size=hidden_size,
                intermediate_size=_intermediate_size(keys, 4 * hidden_size),
                num_attention_heads=keys.integer("num_attention_heads"),
                num_key_value_heads=widest.kv_heads,
                head_dim=widest.k_head_dim,
                rms_norm_eps=keys.real("rms_norm_eps", 1e-6),
                qkv_bias=False,
                output_bias=False,
                mlp_bias=False,
                attention_softcap=_softcap(keys),
            ),
            ropes=_ropes(keys),
            tie_word_embeddings=keys.switch("tie_word_embeddings", False),
            bos_token_id=bos[0] if bos else None,
            eos_token_ids=read_eos_token_ids(vocab_size, file, keys),
            dtype=file.dtype() or keys.dtype(),
            layer_map=layer_map,
            delta_layers=delta_layers,
            is_wrapped=_known_type(file) != text.model_type,
            text=text,
            quantization=read_quantization(file),
            architecture=file.architecture,
        )

    def copy_text(self) -> Any:
        """Return a config of transformers for a model of its own, which writes to it."""
        return copy.deepcopy(self.text)

    @property
    def rope(self) -> RopeConfig:
        """How far positions reach in every layer: of the layer types, the one stretched least."""
        return min(self.ropes, key=lambda rope: rope.trained_positions)

    @property
    def max_position_embeddings(self) -> int:
        """Longest text config.json names, before any stretching of positions."""
        return self.rope.max_position_embeddings


def _read_text_config(file: ConfigFile) -> Any:
    """Read the config of the text model with transformers; no code of the checkpoint ever runs.

    Raises:
        UnsupportedModel: transformers does not know the model type, or has no causal language
            model for it.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import CONFIG_MAPPING, AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    folder = file.file.parent
    file.section("text_config")  # transformers takes whatever it is for a config
    try:
        known = _known_type(file)
        if known == file.get("model_type"):
            whole = AutoConfig.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
        else:
            whole = CONFIG_MAPPING[known].from_dict({**file.keys, "model_type": known})
        text = whole.get_text_config(decoder=True)
    except StrictDataclassError as error:
        raise UnsupportedModel(
            f"{file.file}: {' '.join(str(error).split())}; correct the value"
        ) from error
    except Exception as error:  # config.json may be anything
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise UnsupportedModel(
            f"{file.file}: model_type is {file.get('model_type')!r}, which neither this engine nor "
            f"transformers can load without code from the checkpoint ({first_line}); use a model "
            "type that transformers contains"
        ) from error
    if type(text) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UnsupportedModel(
            f"{file.file}: model_type is {text.model_type!r}, for which transformers has no causal "
            "language model; use a decoder-only model"
        )
    if text is not whole and getattr(whole, "tie_word_embeddings", False):
        text.tie_word_embeddings = True
    stated = file if text is whole else file.section("text_config") or file
    refuse_dropped(stated, getattr(text, "rope_parameters", None) or {})
    if hasattr(text, "quantization_config"):  # transformers would look for kernels of the format
        del text.quantization_config
    return text


def _known_type(file: ConfigFile) -> Any:
    """Return the model type by the name that transformers has for it."""
    model_type = file.get("model_type")
    return OTHER_NAMES.get(model_type, model_type) if isinstance(model_type, str) else model_type


def _keys(file: ConfigFile, text: Any) -> ConfigFile:
    """Return the text config's keys, those that a type spells differently under common names."""
    named = {name: getattr(text, name, None) for name in getattr(text, "attribute_map", {})}
    return ConfigFile(file.file, {**text.to_dict(), **named})


def _layers(file: ConfigFile, text: Any) -> tuple[LayerMap, DeltaLayers | None]:
    try:
        return read_layer_map(text), read_delta_layers(text)
    except LayerMapError as error:
        raise UnsupportedModel(f"{file.file}: {error}") from error


def _intermediate_size(keys: ConfigFile, default: int) -> int:
    """Return the width of the widest layer; some types have a number for each."""
    sizes = keys.get("intermediate_size")
    widest = max(map(int, sizes)) if isinstance(sizes, list) and sizes else None
    return keys.integer("intermediate_size", default) if widest is None else widest


def _softcap(keys: ConfigFile) -> float | None:
    key = "attn_logit_softcapping"
    return None if keys.get(key) is None else keys.real(key)


def _ropes(keys: ConfigFile) -> tuple[RopeConfig, ...]:
    """Read how far positions reach; the angles themselves are those of transformers' module."""
    section = keys.get("rope_parameters")
    parameters = section if isinstance(section, dict) else {}
    by_type = [part for part in parameters.values() if isinstance(part, dict)]
    return tuple(_rope(keys, part) for part in by_type or [parameters])


def _rope(keys: ConfigFile, parameters: dict[str, Any]) -> RopeConfig:
    kind = parameters.get("rope_type")
    return RopeConfig(
        kind=kind if isinstance(kind, str) else "default",
        theta=keys.real("rope_theta", 10_000.0),
        parameters=parameters,
        max_position_embeddings=keys.integer("max_position_embeddings"),
    )


def read_layer_map(config: object) -> LayerMap:
    """Read the layers with attention from a text config of transformers.

    Sizes that differ by layer come from `per_layer_config` (Gemma 4: `global_head_dim`,
    `num_global_key_value_heads`), types from `layer_types`; a config without `layer_types` has its
    `sliding_window`, if any, in every layer (Mistral, Phi-3, StarCoder2).

    Raises:
        LayerMapError: a layer is not softmax attention over keys and values of all heads.
    """
    layers = positive(config, "num_hidden_layers")
    every = _layer_types(config, layers)
    attending = [layer for layer, kind in enumerate(every) if kind not in RECURRENT]
    types = [every[layer] for layer in attending]
    shapes = [_shape(_layer(config, layer), every[layer], config) for layer in attending]
    num_shared = getattr(config, "num_kv_shared_layers", None) or 0
    return LayerMap.build(shapes, shared_owners(types, num_shared))


def _layer_types(config: object, layers: int) -> Sequence[str]:
    types = getattr(config, "layer_types", None)
    if types is None:
        return [FULL if getattr(config, "sliding_window", None) is None else SLIDING] * layers
    known = (FULL, SLIDING, CHUNKED, *sorted(RECURRENT))
    others = sorted(set(types) - set(known))
    if others:
        raise LayerMapError(
            f"layer_types has {', '.join(others)}; only {', '.join(known)} are supported"
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
    sliding_window = positive(config, "sliding_window") if kind == SLIDING else None
    chunk_size = positive(config, "attention_chunk_size") if kind == CHUNKED else None
    if getattr(layer, "kv_lora_rank", None) is not None:
        rank = positive(layer, "kv_lora_rank")
        return LayerShape(
            kv_heads=1,
            k_head_dim=rank + positive(layer, "qk_rope_head_dim"),
            v_head_dim=rank,
            sliding_window=sliding_window,
            attention_chunk_size=chunk_size,
            is_latent=True,
        )
    heads = positive(layer, "num_attention_heads")
    head_dim = getattr(layer, "head_dim", None) or positive(config, "hidden_size") // heads
    return LayerShape(
        kv_heads=getattr(layer, "num_key_value_heads", None) or heads,
        k_head_dim=head_dim,
        v_head_dim=getattr(layer, "v_head_dim", None) or head_dim,
        sliding_window=sliding_window,
        attention_chunk_size=chunk_size,
    )
