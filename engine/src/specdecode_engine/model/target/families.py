"""The model families that the engine computes itself: what each has that a Llama has not."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from specdecode_engine.model.checkpoint.config_file import CheckpointError, ConfigFile
from specdecode_engine.model.checkpoint.quantized.config import unsupported_quantization
from specdecode_engine.model.kv.layer_map import LINEAR
from specdecode_engine.model.kv.layer_map import RECURRENT as RECURRENT_TYPES
from specdecode_engine.model.layers.sparse_mlp import ExpertTensors

GPT_OSS_ROPE: Mapping[str, object] = {
    "rope_type": "yarn",
    "rope_theta": 150_000.0,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
TIE = "tie_word_embeddings"
GEMMA2_DEFAULTS: Mapping[str, object] = {
    "vocab_size": 256_000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
}
GEMMA3_DEFAULTS: Mapping[str, object] = {
    **GEMMA2_DEFAULTS,
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
    "sliding_window_pattern": 6,
    "final_logit_softcapping": None,
    "attn_logit_softcapping": None,
}


class Windows(Enum):
    """Which keys of config.json limit attention to a sliding window."""

    NONE = "none"  # a window is refused
    ALL = "all"  # sliding_window holds for every layer
    SWITCH = "switch"  # use_sliding_window; then layer_types, or layers from max_window_layers on
    ALTERNATE = "alternate"  # layer_types; by default every other layer from the first on
    PATTERN = "pattern"  # layer_types; by default all but every sliding_window_pattern-th layer


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
    is_gemma: bool = False  # norms of 1 + weight, before and after attention and the MLP; a gate of
    # gelu; embeddings times sqrt(hidden_size); softcaps; the scale by query_pre_attn_scalar
    has_local_rope: bool = False  # layers with a window have angles of their own
    text_section: str | None = None  # of config.json, with the keys of the text model
    may_be_flat: bool = False  # those keys are outside of a section in older files
    defaults: Mapping[str, object] = field(default_factory=dict)  # of keys of config.json

    def keys_of(self, file: ConfigFile) -> ConfigFile:
        """Return the keys of the text model, with the family's defaults of those left out."""
        text, tie = file, {}
        if self.text_section is not None:
            section = file.section(self.text_section)
            if section is None and not self.may_be_flat:
                raise file.error(self.text_section, "it must describe the text model")
            text = section or file
            if file.get(TIE) is True:
                tie = {TIE: True}
        return ConfigFile(file.file, {**self.defaults, **text.keys, **tie}, text.prefix)


LLAMA = Family()
GEMMA2 = Family(is_gemma=True, windows=Windows.ALTERNATE, defaults=GEMMA2_DEFAULTS)
GEMMA3 = Family(
    is_gemma=True,
    qk_norm=True,
    windows=Windows.PATTERN,
    has_local_rope=True,
    defaults=GEMMA3_DEFAULTS,
)
QWEN2 = Family(always_qkv_bias=True, windows=Windows.SWITCH)
QWEN3 = Family(qk_norm=True, windows=Windows.SWITCH, head_dim=128)
QWEN2_VL = replace(
    QWEN2, text_section="text_config", may_be_flat=True, rope={"rope_theta": 1_000_000.0}
)
FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": Family(windows=Windows.ALL),
    "Qwen2ForCausalLM": QWEN2,
    "MiMoForCausalLM": QWEN2,
    "Qwen3ForCausalLM": QWEN3,
    "Qwen3MoeForCausalLM": Family(qk_norm=True, experts=ExpertTensors.SEPARATE),
    "GptOssForCausalLM": Family(
        attention_bias=True,
        sinks=True,
        windows=Windows.ALTERNATE,
        head_dim=64,
        rope=GPT_OSS_ROPE,
        experts=ExpertTensors.STACKED,
    ),
    "Gemma2ForCausalLM": GEMMA2,
    "Gemma3ForCausalLM": GEMMA3,
    "Gemma3ForConditionalGeneration": replace(GEMMA3, text_section="text_config"),
    "Qwen2VLForConditionalGeneration": QWEN2_VL,
    "Qwen2_5_VLForConditionalGeneration": QWEN2_VL,
    "Qwen3VLForConditionalGeneration": replace(
        QWEN3, text_section="text_config", rope={"rope_theta": 500_000.0}
    ),
}
"""By the name under `architectures`."""


RECURRENT = ("ssm_state_size", "mamba_d_state", "hybrid_override_pattern", "linear_attn_config")
COMPUTED = ("full_attention", "sliding_attention", "chunked_attention", *sorted(RECURRENT_TYPES))
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
        yield f"recurrent layers of an unknown kind ({part.prefix}{named})"
