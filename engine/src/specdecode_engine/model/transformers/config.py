"""What the config.json of a model that transformers computes declares, as the engine needs it."""

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch

from specdecode_engine.model.config import DecoderConfig, TokenDraft, read_eos_token_ids
from specdecode_engine.model.config_file import ConfigFile
from specdecode_engine.model.delta_states import DeltaLayers
from specdecode_engine.model.layer_config import read_delta_layers, read_layer_map
from specdecode_engine.model.layer_map import LayerMap, LayerMapError
from specdecode_engine.model.quantized.config import Quantization, read_quantization
from specdecode_engine.model.rope import RopeConfig
from specdecode_engine.model.rope_keys import refuse_dropped
from specdecode_engine.model.transformers.attention import UnsupportedModel

OTHER_NAMES = {"kimi_k2": "deepseek_v3"}
"""Model types whose name only code of the checkpoint knows, which is never run."""


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
    delta_layers: DeltaLayers | None = None  # gated delta nets

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
