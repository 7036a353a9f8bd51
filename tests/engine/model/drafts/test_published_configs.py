"""The config.json of heads on the Hub for Llama-3.1-8B: which are read, and why others are not."""

import json
from pathlib import Path
from typing import Any

import pytest

from specdecode_engine.model.checkpoint.config_file import ConfigError, DraftMismatch
from specdecode_engine.model.drafts.eagle_config import Eagle3Config
from specdecode_engine.model.target.config import LlamaConfig

LLAMA_3_1_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
LAYER: dict[str, Any] = {
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 2048,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 1,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "vocab_size": 128256,
}
# configs/llama3-8B-eagle3.json of SpecForge, which its heads carry
SPECFORGE = {
    **LAYER,
    "architectures": ["LlamaForCausalLMEagle3"],
    "bos_token_id": 128000,
    "draft_vocab_size": 32000,
    "eos_token_id": 128001,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "use_cache": True,
}
# RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3, shortened to what a reader needs
SPECULATORS = {
    "architectures": ["Eagle3Speculator"],
    "draft_vocab_size": 32000,
    "norm_before_residual": True,
    "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "Llama-3.1-8B"}},
    "speculators_model_type": "eagle3",
    "transformer_layer_config": LAYER,
}


@pytest.fixture
def target(tmp_path: Path) -> LlamaConfig:
    return LlamaConfig.load(write(tmp_path / "target", LLAMA_3_1_8B))


def write(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_head_of_specforge_fits(target: LlamaConfig, tmp_path: Path) -> None:
    head = Eagle3Config.load(write(tmp_path / "head", SPECFORGE), target)
    assert (head.vocab_size, head.draft_vocab_size) == (128256, 32000)
    assert head.aux_spec.layers == (1, 15, 28)  # of 32, as the authors' heads
    assert head.decoder.hidden_size == target.decoder.hidden_size == 4096
    assert not head.norm_before_residual


def test_a_head_of_speculators_fits(target: LlamaConfig, tmp_path: Path) -> None:
    head = Eagle3Config.load(write(tmp_path / "head", SPECULATORS), target)
    assert head.decoder.intermediate_size == 14336
    assert head.draft_vocab_size == 32000
    assert head.norm_before_residual
    assert head.aux_spec.layers == (1, 15, 28)


@pytest.mark.parametrize(
    ("ids", "layers"), [([2, 16, 29], (1, 15, 28)), ([3, 17, 30], (2, 16, 29)), ([8, 32], (7, 31))]
)
def test_ids_of_speculators_are_boundaries(
    target: LlamaConfig, tmp_path: Path, ids: list[int], layers: tuple[int, ...]
) -> None:
    keys = {**SPECULATORS, "eagle_aux_hidden_state_layer_ids": ids}
    assert Eagle3Config.load(write(tmp_path / "head", keys), target).aux_spec.layers == layers


def test_ids_that_reach_the_last_boundary_are_boundaries(
    target: LlamaConfig, tmp_path: Path
) -> None:
    """As in nvidia/gpt-oss-120b-Eagle3-v3, which reads 24, 30 and 36 of 36."""
    variant = {"eagle_aux_hidden_state_layer_ids": [24, 30, 32], "norm_before_fc": True}
    keys = {**SPECFORGE, "eagle_config": variant}
    head = Eagle3Config.load(write(tmp_path / "head", keys), target)
    assert head.aux_spec.layers == (23, 29, 31)
    assert head.norm_before_fc


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"speculators_model_type": "peagle"}, "speculators_model_type is 'peagle'"),
        ({"speculators_model_type": None}, "speculators_model_type is missing"),
        ({"transformer_layer_config": None}, "transformer_layer_config is missing; it must be an"),
        (
            {"transformer_layer_config": {**LAYER, "model_type": "gemma3"}},
            r"transformer_layer_config\.model_type is 'gemma3'; supported: llama, qwen3",
        ),
    ],
)
def test_other_drafts_of_speculators_are_refused(
    target: LlamaConfig, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Eagle3Config.load(write(tmp_path / "head", {**SPECULATORS, **change}), target)


def test_a_head_of_qwen3_layers_has_norms_of_heads(target: LlamaConfig, tmp_path: Path) -> None:
    """Keys that are a copy of a tied target's with 36 layers are about that target."""
    copied = {"layer_types": ["full_attention"] * 36, "tie_word_embeddings": True}
    windows = {"use_sliding_window": False, "sliding_window": 4096}
    layer = {**LAYER, "model_type": "qwen3", **windows, **copied}
    keys = {**SPECULATORS, "transformer_layer_config": layer, "target_hidden_size": None}
    head = Eagle3Config.load(write(tmp_path / "head", keys), target)
    assert head.decoder.qk_norm
    assert not Eagle3Config.load(write(tmp_path / "llama", SPECULATORS), target).decoder.qk_norm
    assert head.sliding_windows == (None,)
    assert not head.tie_word_embeddings


def test_a_boundary_after_the_last_layer_is_refused(target: LlamaConfig, tmp_path: Path) -> None:
    keys = {**SPECULATORS, "eagle_aux_hidden_state_layer_ids": [0, 16, 33]}
    with pytest.raises(DraftMismatch, match=r"boundaries between the target's 32 layers: 0\.\.32"):
        Eagle3Config.load(write(tmp_path / "head", keys), target)
