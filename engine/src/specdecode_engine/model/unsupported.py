"""What a config.json needs that no implementation of ours computes, by the keys that declare it."""

from collections.abc import Iterator

from specdecode_engine.model.config_file import CheckpointError, ConfigFile
from specdecode_engine.model.quantized.config import unsupported_quantization

RECURRENT = ("linear_num_value_heads", "ssm_state_size", "mamba_d_state", "hybrid_override_pattern")
ATTENTION = ("full_attention", "sliding_attention", "chunked_attention")


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
    if part.get("kv_lora_rank") is not None:
        yield f"multi-head latent attention ({part.prefix}kv_lora_rank)"
    types = part.get("layer_types")
    others = sorted({*map(str, types)} - {*ATTENTION}) if isinstance(types, list) else []
    declared = next((key for key in RECURRENT if part.get(key) is not None), None)
    if others or declared is not None:
        named = f"layer_types has {', '.join(others)}" if others else declared
        yield f"layers without softmax attention ({part.prefix}{named})"
