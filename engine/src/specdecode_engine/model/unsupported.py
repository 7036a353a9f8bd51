"""What a config.json needs that no implementation of ours computes, by the keys that declare it."""

from collections.abc import Iterator

from specdecode_engine.model.config_file import CheckpointError, ConfigFile
from specdecode_engine.model.layer_map import LINEAR
from specdecode_engine.model.quantized.config import unsupported_quantization

RECURRENT = ("ssm_state_size", "mamba_d_state", "hybrid_override_pattern", "linear_attn_config")
COMPUTED = ("full_attention", "sliding_attention", "chunked_attention", "linear_attention")
STATE_HEADS = "linear_num_value_heads"
"""Layers of type linear_attention are gated delta nets where a config.json has this key."""
INDEXED = "indexed_attention"


def refuse_unsupported(file: ConfigFile) -> None:
    """Raise with all features at once; a text model inside of a larger one is searched too."""
    found = list(unsupported_features(file))
    if found:
        raise CheckpointError(
            f"{file.file}: model_type is {file.get('model_type')!r}, which needs what is not "
            f"supported: {'; '.join(found)}"
        )


def unsupported_features(file: ConfigFile) -> Iterator[str]:
    """Yield features with the keys that declare them."""
    text = file.section("text_config")
    parts = [file] if text is None else [file, text]
    quantization = unsupported_quantization(file)
    if quantization is not None:
        yield f"quantized weights ({quantization})"
    for part in parts:
        if part.get("is_encoder_decoder") is True:
            yield f"an encoder ({part.prefix}is_encoder_decoder)"
        yield from _layers(part)


def _layers(part: ConfigFile) -> Iterator[str]:
    if part.get("index_topk") is not None:
        yield f"attention to the tokens that an indexer selects ({part.prefix}index_topk)"
    if part.get("zero_expert_num") is not None:
        yield f"layers of two attentions, experts without weights ({part.prefix}zero_expert_num)"
    types = part.get("layer_types")
    others = sorted({*map(str, types)} - {*COMPUTED, INDEXED}) if isinstance(types, list) else []
    if isinstance(types, list) and LINEAR in types and part.get(STATE_HEADS) is None:
        others.append(LINEAR)
    declared = next((key for key in RECURRENT if part.get(key) is not None), None)
    if others or declared is not None:
        named = f"layer_types has {', '.join(others)}" if others else declared
        yield f"recurrent layers of another kind than gated delta nets ({part.prefix}{named})"
