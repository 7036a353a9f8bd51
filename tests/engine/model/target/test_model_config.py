"""config.json is read in both spellings; what we cannot compute is refused with key and value."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from specdecode_engine.model.checkpoint.config_file import CheckpointError
from specdecode_engine.model.target.config import LlamaConfig

LLAMA3: dict[str, object] = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def load(folder: Path, config: dict[str, object]) -> LlamaConfig:
    (folder / "config.json").write_text(json.dumps(config))
    return LlamaConfig.load(folder)


def test_the_usual_keys(tmp_path: Path, config: dict[str, object]) -> None:
    parsed = load(tmp_path, config)
    assert (parsed.vocab_size, parsed.num_hidden_layers, parsed.decoder.hidden_size) == (31, 4, 12)
    assert (parsed.decoder.num_key_value_heads, parsed.decoder.head_dim) == (2, 6)
    assert parsed.dtype == torch.float32
    assert (parsed.bos_token_id, parsed.eos_token_ids) == (1, (2,))
    assert parsed.rope.theta == 10_000.0


def test_defaults_are_those_of_transformers(tmp_path: Path, config: dict[str, object]) -> None:
    for key in ("num_key_value_heads", "head_dim", "rms_norm_eps", "torch_dtype", "hidden_act"):
        del config[key]
    parsed = load(tmp_path, {**config, "hidden_size": 16})
    assert (parsed.decoder.num_key_value_heads, parsed.decoder.head_dim) == (4, 4)
    assert parsed.decoder.rms_norm_eps == 1e-6
    assert parsed.dtype is None


def test_null_counts_as_absent(tmp_path: Path, config: dict[str, object]) -> None:
    absent = {"rope_scaling": None, "quantization_config": None, "attention_bias": None}
    assert load(tmp_path, {**config, **absent}) == load(tmp_path, config)


def test_both_spellings_of_rope_are_one(tmp_path: Path, config: dict[str, object]) -> None:
    old = {"rope_theta": 500.0, "rope_scaling": {"type": "llama3", **LLAMA3}}
    new = {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500.0, **LLAMA3}}
    assert load(tmp_path, {**config, **old}).rope == load(tmp_path, {**config, **new}).rope


def test_both_spellings_of_the_type_are_one(tmp_path: Path, config: dict[str, object]) -> None:
    del config["torch_dtype"]
    for name in ("dtype", "torch_dtype"):
        assert load(tmp_path, {**config, name: "bfloat16"}).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("rope", "positions"),
    [
        ({}, 64),
        ({"rope_type": "linear", "factor": 2.0}, 128),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, 256),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}, 64),
        ({"rope_type": "llama3", **LLAMA3}, 64),
    ],
)
def test_trained_positions(
    tmp_path: Path, config: dict[str, object], rope: dict[str, object], positions: int
) -> None:
    parsed = load(tmp_path, {**config, "rope_parameters": rope})
    assert parsed.rope.trained_positions == positions


def test_stop_tokens_of_both_files_count(tmp_path: Path, config: dict[str, object]) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 9]}')
    assert load(tmp_path, {**config, "eos_token_id": [4, 2]}).eos_token_ids == (4, 2, 9)
    (tmp_path / "generation_config.json").write_text("{}")
    assert load(tmp_path, {**config, "eos_token_id": None}).eos_token_ids == ()


def test_qwen3_has_norms_of_heads_and_a_head_dim_of_its_own(
    tmp_path: Path, config: dict[str, object]
) -> None:
    qwen3 = {**config, "architectures": ["Qwen3ForCausalLM"]}
    assert load(tmp_path, qwen3).decoder.qk_norm
    assert not load(tmp_path, config).decoder.qk_norm
    del qwen3["head_dim"]
    assert load(tmp_path, {**qwen3, "hidden_size": 14}).decoder.head_dim == 128


MISTRAL = {"architectures": ["MistralForCausalLM"]}
QWEN = {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 16}
GPT_OSS = {"architectures": ["GptOssForCausalLM"], "num_local_experts": 4}
SLIDING = "sliding_attention"
SWITCHED = {**QWEN, "use_sliding_window": True}


@pytest.mark.parametrize(
    ("keys", "windows"),
    [
        ({}, (None,) * 4),
        ({"use_sliding_window": False, "sliding_window": 16}, (None,) * 4),
        ({**MISTRAL, "sliding_window": None}, (None,) * 4),
        ({**MISTRAL, "sliding_window": 16}, (16,) * 4),
        (MISTRAL, (4096,) * 4),
        (QWEN, (None,) * 4),
        (SWITCHED, (None,) * 4),
        ({**SWITCHED, "max_window_layers": 0}, (16,) * 4),
        ({**SWITCHED, "max_window_layers": 3}, (None, None, None, 16)),
        ({**SWITCHED, "layer_types": ["sliding_attention", "full_attention"] * 2}, (16, None) * 2),
        (GPT_OSS, (128, None) * 2),
        (
            {**GPT_OSS, "sliding_window": 8, "layer_types": ["full_attention"] * 3 + [SLIDING]},
            (None, None, None, 8),
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_windows_of_layers(
    tmp_path: Path,
    config: dict[str, object],
    keys: dict[str, object],
    windows: tuple[int | None, ...],
) -> None:
    assert load(tmp_path, {**config, **keys}).sliding_windows == windows


MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 6,
}


@pytest.mark.parametrize(
    ("keys", "layers"),
    [
        ({}, {0, 1, 2, 3}),
        ({"decoder_sparse_step": 2}, {1, 3}),
        ({"mlp_only_layers": [0, 3]}, {1, 2}),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [1]}, {3}),
        ({"num_experts": None, "num_local_experts": 4, "mlp_only_layers": None}, {0, 1, 2, 3}),
    ],
    ids=str,
)
def test_layers_with_experts(
    tmp_path: Path, config: dict[str, object], keys: dict[str, object], layers: set[int]
) -> None:
    parsed = load(tmp_path, {**config, **MOE, **keys})
    assert {n for n in range(4) if parsed.sparse_mlp_of(n) is not None} == layers
    assert parsed.sparse_mlp is not None
    assert parsed.sparse_mlp.num_experts == 4


def test_gpt_oss_has_the_defaults_of_transformers(
    tmp_path: Path, config: dict[str, object]
) -> None:
    ours = load(tmp_path, {**config, **GPT_OSS, "head_dim": None})
    theirs: Any = transformers.GptOssConfig()
    decoder, mixture = ours.decoder, ours.sparse_mlp
    assert mixture is not None
    assert ours.rope.parameters == theirs.rope_parameters
    assert decoder.head_dim == theirs.head_dim
    assert decoder.qkv_bias == decoder.output_bias == theirs.attention_bias
    assert decoder.sinks
    assert mixture.routing.top_k == theirs.num_experts_per_tok
    assert mixture.activation[1:] == (theirs.swiglu_alpha, theirs.swiglu_limit)
    assert mixture.sparse_layers == {0, 1, 2, 3}


def test_the_base_of_angles_has_a_default_where_other_parameters_have_none(
    tmp_path: Path, config: dict[str, object]
) -> None:
    yarn = {"rope_type": "yarn", "factor": 2.0}
    assert load(tmp_path, {**config, **GPT_OSS, "rope_scaling": yarn}).rope.theta == 150_000.0
    assert load(tmp_path, {**config, "rope_scaling": yarn}).rope.theta == 10_000.0


GEMMA3: dict[str, object] = {
    "architectures": ["Gemma3ForCausalLM"],
    "num_hidden_layers": 7,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}


def test_gemma_2_has_the_defaults_of_transformers(tmp_path: Path) -> None:
    parsed = load(tmp_path, {"architectures": ["Gemma2ForCausalLM"]})
    theirs = transformers.Gemma2Config()
    assert parsed.decoder.hidden_size == theirs.hidden_size
    assert parsed.decoder.head_dim == theirs.head_dim
    assert parsed.decoder.attention_scale == theirs.query_pre_attn_scalar**-0.5
    assert parsed.decoder.attention_softcap == theirs.attn_logit_softcapping
    assert parsed.logit_softcap == theirs.final_logit_softcapping
    assert parsed.vocab_size == theirs.vocab_size
    assert parsed.max_position_embeddings == theirs.max_position_embeddings
    assert parsed.tie_word_embeddings is theirs.tie_word_embeddings
    assert parsed.sliding_windows == (theirs.sliding_window, None) * 13
    assert (parsed.bos_token_id, parsed.eos_token_ids) == (2, (1,))


def test_gemma_3_has_angles_of_their_own_under_windows(
    tmp_path: Path, config: dict[str, object]
) -> None:
    """In the spelling of published files and in that of transformers 5."""
    parsed = load(tmp_path, {**config, **GEMMA3, "sliding_window": 8})
    everything, local = parsed.ropes
    assert (everything.kind, everything.theta) == ("linear", 1e6)
    assert (local.kind, local.theta) == ("default", 1e4)
    assert parsed.rope_indices == (1, 1, 1, 1, 1, 0, 1)
    assert parsed.rope.trained_positions == parsed.max_position_embeddings
    assert parsed.decoder.attention_softcap is parsed.logit_softcap is None
    newer = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    keys = {**config, **GEMMA3, "rope_scaling": None, "rope_parameters": newer}
    assert load(tmp_path, keys).ropes == parsed.ropes


REFUSED: list[tuple[dict[str, object], str]] = [
    ({**MOE, "num_experts_per_tok": 5}, "num_experts_per_tok is 5; the layers have 4 experts"),
    ({**MOE, "num_experts": None}, "num_experts is missing; it must be a positive integer"),
    ({**MOE, "mlp_only_layers": "1"}, "mlp_only_layers is '1'; it must be a list of numbers"),
    ({**MOE, "use_sliding_window": True}, "use_sliding_window is True; this architecture has no"),
    ({**GPT_OSS, "num_local_experts": 2}, "num_experts_per_tok is missing; the layers have 2"),
    ({**GPT_OSS, "num_local_experts": None}, "num_local_experts is missing; it must be a positive"),
    ({**MOE, "hidden_act": "gelu_pytorch_tanh"}, "supported: silu, swish"),
    ({**GPT_OSS, "swiglu_limit": 0}, "swiglu_limit is 0; it must be positive"),
    ({**GPT_OSS, "layer_types": [SLIDING]}, "it must name full_attention or sliding_attention"),
    ({"architectures": ["GPT2LMHeadModel"]}, "architectures is ['GPT2LMHeadModel']; supported"),
    ({"architectures": None}, "architectures is missing; supported"),
    ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; supported: silu, swish, gelu_pytorch_tanh"),
    ({"sliding_window": 4096}, "sliding_window is 4096; this architecture has no sliding windows"),
    ({"quantization_config": {"bits": 4}}, "quantization_config.quant_method is missing"),
    ({"vocab_size": None}, "vocab_size is missing; it must be a positive integer"),
    ({"vocab_size": True}, "vocab_size is True; it must be a positive integer"),
    ({"hidden_size": 0}, "hidden_size is 0; it must be a positive integer"),
    ({"rms_norm_eps": "1e-5"}, "rms_norm_eps is '1e-5'; it must be a number"),
    ({"rms_norm_eps": -1.0}, "rms_norm_eps is -1.0; it must be positive"),
    ({"mlp_bias": "no"}, "mlp_bias is 'no'; it must be true or false"),
    ({"num_key_value_heads": 3}, "num_key_value_heads is 3; it must divide"),
    ({"head_dim": 5}, "head_dim is 5; rotary positions need an even"),
    (
        {"head_dim": None, "hidden_size": 14},
        "head_dim is missing; hidden_size 14 is not a multiple",
    ),
    ({"torch_dtype": "int8"}, "torch_dtype is 'int8'; convert"),
    ({"eos_token_id": "</s>"}, "eos_token_id is '</s>'; it must be an integer or a list"),
    ({"layer_types": ["sliding_attention"]}, "layer_types is ['sliding_attention']; only full"),
    ({"rope_scaling": {"type": "mrope"}}, "type is 'mrope'; supported kinds are default"),
    ({"rope_scaling": 3}, "rope_scaling is 3; it must be an object"),
    ({"rope_parameters": {"rope_type": "linear"}}, "rope_parameters.factor is missing"),
    (
        {"rope_scaling": {"rope_type": "longrope", "long_factor": [1.0]}},
        "rope_scaling.long_factor is [1.0]; longrope needs a list of 3",
    ),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; rotating a part"),
    (
        {**SWITCHED, "layer_types": ["full_attention"] * 3},
        "it must name full_attention or sliding_attention for 4 layers",
    ),
    ({**SWITCHED, "max_window_layers": -1}, "max_window_layers is -1; it must be an integer of"),
    ({**SWITCHED, "sliding_window": 0}, "sliding_window is 0; it must be a positive integer"),
    ({**MISTRAL, "layer_types": ["sliding_attention"] * 4}, "only full_attention is supported"),
    (
        {**GEMMA3, "rope_parameters": {"rope_type": "default"}},
        "it must have full_attention and sliding_attention",
    ),
    ({**GEMMA3, "attn_logit_softcapping": 50.0}, "norms of query and key heads replace it"),
    ({**GEMMA3, "hidden_activation": "silu"}, "only gelu_pytorch_tanh is supported"),
    ({**GEMMA3, "use_bidirectional_attention": True}, "text is generated causally only"),
    ({**GEMMA3, "sliding_window_pattern": 0}, "sliding_window_pattern is 0; it must be a positive"),
    (
        {"architectures": ["Gemma3ForConditionalGeneration"]},
        "text_config is missing; it must describe the text model",
    ),
    (
        {"architectures": ["Qwen3ForCausalLM"], "num_key_value_heads": None},
        "num_key_value_heads is missing; it must be a positive integer",
    ),
]


@pytest.mark.parametrize(("keys", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_it_is_refused(
    tmp_path: Path, config: dict[str, object], keys: dict[str, object], message: str
) -> None:
    with pytest.raises(CheckpointError, match=re.escape(message)) as caught:
        load(tmp_path, {**config, **keys})
    assert str(caught.value).startswith(f"{tmp_path / 'config.json'}: ")


@pytest.mark.parametrize("text", ["{", "[1]", "\ufeff{}"])
def test_a_broken_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match="download it again"):
        LlamaConfig.load(tmp_path)
