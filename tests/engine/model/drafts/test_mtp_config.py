"""What is understood of a checkpoint with MTP modules, and what is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from checks.lossless.mtp_module import write_mtp_modules
from specdecode_engine.model.checkpoint.config_file import CheckpointError, DraftMismatch
from specdecode_engine.model.checkpoint.mtp_layout import DEEPSEEK, MIMO, QWEN3_NEXT
from specdecode_engine.model.drafts.mtp import MtpChainHead, MtpHead
from specdecode_engine.model.drafts.mtp_config import MtpChainConfig, MtpConfig, count_modules
from specdecode_engine.model.target.config import LlamaConfig
from specdecode_engine.model.target.llama import Llama
from specdecode_engine.startup.draft_methods.registry import algorithm_of
from tests.engine.mtp_checkpoints import LATENT_KEYS, export_module, with_modules

CPU = torch.device("cpu")
FAULTS = ("deleted", "renamed", "reshaped")


@pytest.fixture
def target(tmp_path: Path, config: dict[str, object], tensors: Any, write: Any) -> Path:
    folder: Path = write(tmp_path / "target", config, tensors)
    return folder


def read(folder: Path, target: Path) -> MtpConfig:
    return MtpConfig.load(folder, LlamaConfig.load(target))


def change(folder: Path, **keys: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | keys))


@pytest.mark.parametrize(
    ("layout", "names", "numbers"),
    [("deepseek", DEEPSEEK, (4,)), ("mimo", MIMO, (0,)), ("qwen", QWEN3_NEXT, (0,))],
)
def test_modules_next_to_a_target_are_found_by_their_names(
    target: Path, tmp_path: Path, layout: str, names: object, numbers: tuple[int, ...]
) -> None:
    folder = with_modules(target, tmp_path / "with", layout, *numbers)
    assert (count_modules(folder), count_modules(target)) == (1, 0)
    config = read(folder, folder)
    assert (config.layout, config.numbers) == (names, numbers)
    assert config.facts == {"mtp_layout": config.layout.name, "mtp_modules": 1}
    head = MtpHead.load(folder, Llama.load(folder, device=CPU))
    assert head.config == config


@pytest.mark.parametrize("layout", ["deepseek", "mimo", "qwen"])
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_of_a_tensor_is_named(
    target: Path, tmp_path: Path, layout: str, fault: str
) -> None:
    number = 4 if layout == "deepseek" else 0
    folder = with_modules(target, tmp_path / "with", layout, number)
    loaded, file = Llama.load(folder, device=CPU), folder / "model.safetensors"
    whole, known = load_file(file), load_file(target / "model.safetensors")
    modules = sorted(whole.keys() - known.keys())
    assert len(modules) == 13
    for name in modules:
        damaged = {other: one for other, one in whole.items() if other != name}
        if fault == "renamed":
            damaged[f"{name}_old"] = whole[name]
        if fault == "reshaped":
            damaged[name] = torch.cat((whole[name], torch.zeros_like(whole[name][:1])))
        save_file(damaged, file)
        with pytest.raises(CheckpointError, match=name):
            MtpHead.load(folder, loaded)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("q_lora_rank", [24, None])
def test_every_fault_of_latent_attention_is_named(
    target: Path, tmp_path: Path, fault: str, q_lora_rank: int | None
) -> None:
    keys: dict[str, Any] = {**LATENT_KEYS, "q_lora_rank": q_lora_rank}
    folder = export_module(target, tmp_path / "export", **keys)
    loaded, file = Llama.load(target, device=CPU), folder / "model.safetensors"
    whole = load_file(file)
    assert MtpHead.load(folder, loaded).config.decoder.latent is not None
    attention = [name for name in whole if ".self_attn." in name]
    assert len(attention) == (5 if q_lora_rank is None else 7)
    for name in attention:
        damaged = {other: one for other, one in whole.items() if other != name}
        if fault == "renamed":
            damaged[f"{name}_old"] = whole[name]
        if fault == "reshaped":
            damaged[name] = torch.cat((whole[name], torch.zeros_like(whole[name][:1])))
        save_file(damaged, file)
        with pytest.raises(CheckpointError, match=name):
            MtpHead.load(folder, loaded)


def test_the_first_of_several_modules_is_reused(target: Path, tmp_path: Path) -> None:
    folder = with_modules(target, tmp_path / "with", "deepseek", 4, 5, num_nextn_predict_layers=2)
    config = read(folder, folder)
    assert (config.numbers, config.facts["mtp_modules"]) == ((4, 5), 2)
    head = MtpHead.load(folder, Llama.load(folder, device=CPU))
    stored = load_file(folder / "model.safetensors")["model.layers.4.eh_proj.weight"]
    assert torch.equal(head.modules[0].projection.plain_weight(), stored)
    change(folder, num_nextn_predict_layers=1)
    with pytest.raises(CheckpointError, match=r"num_nextn_predict_layers is 1; .* has 2 modules"):
        read(folder, folder)


def test_copies_of_embedding_and_head_are_ignored_unless_their_shape_differs(
    target: Path, tmp_path: Path
) -> None:
    folder = export_module(target, tmp_path / "export")
    loaded, file = Llama.load(target, device=CPU), folder / "model.safetensors"
    tensors = load_file(file)
    for name in ("embed_tokens", "shared_head.head"):
        full = f"model.layers.0.{name}.weight"
        save_file({**tensors, full: torch.full((31, 12), torch.nan)}, file)
        head = MtpHead.load(folder, loaded)
        assert head.embedding is loaded.embedding
        save_file({**tensors, full: torch.zeros(30, 12)}, file)
        with pytest.raises(CheckpointError, match=rf"{full} is \[30, 12\] instead of \[31, 12\]"):
            MtpHead.load(folder, loaded)


def test_an_export_is_recognised_and_a_target_without_modules_refused(
    target: Path, tmp_path: Path
) -> None:
    folder = export_module(target, tmp_path / "export")
    assert read(folder, target).numbers == (0,)
    assert algorithm_of(folder) == "MTP"
    assert algorithm_of(target) == "STANDALONE"
    with pytest.raises(CheckpointError, match="no tensors of an MTP module"):
        read(target, target)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"architectures": ["FalconForCausalLMNextN"]}, "architectures is"),
        ({"kv_lora_rank": 8}, "kv_lora_rank is 8; .* of DeepseekV3ForCausalLM and Glm4MoeLite"),
        ({**LATENT_KEYS, "kv_lora_rank": None}, "kv_lora_rank"),
        ({**LATENT_KEYS, "attention_bias": True}, "attention_bias is True; biases of latent"),
        ({**LATENT_KEYS, "qk_rope_head_dim": 7}, "qk_rope_head_dim is 7; .* an even number"),
        ({**LATENT_KEYS, "q_lora_rank": 0}, "q_lora_rank is 0"),
        ({"use_sliding_window": True}, "use_sliding_window is True"),
        ({"partial_rotary_factor": 0.1}, "partial_rotary_factor is 0.1; of head_dim 6"),
    ],
)
def test_what_a_module_cannot_have_is_refused_by_its_key(
    target: Path, tmp_path: Path, keys: dict[str, object], message: str
) -> None:
    folder = export_module(target, tmp_path / "export")
    change(folder, **keys)
    with pytest.raises(CheckpointError, match=message):
        read(folder, target)


@pytest.mark.parametrize(("key", "value"), [("hidden_size", 24), ("vocab_size", 30)])
def test_modules_of_another_target_are_refused(
    target: Path, tmp_path: Path, key: str, value: int
) -> None:
    folder = export_module(target, tmp_path / "export")
    change(folder, **{key: value})
    with pytest.raises(DraftMismatch, match=f"{key} is {value}; the target's is"):
        read(folder, target)


def test_without_tensors_config_json_decides(target: Path, tmp_path: Path) -> None:
    folder = with_modules(target, tmp_path / "with", "deepseek", 4, num_nextn_predict_layers=1)
    (folder / "model.safetensors").unlink()
    assert count_modules(folder) == 1
    assert read(folder, target).numbers == (4,)
    change(folder, num_nextn_predict_layers=0)
    assert count_modules(folder) == 0


# Chains: a module for each draft step


def read_chain(folder: Path, target: Path) -> MtpChainConfig:
    return MtpChainConfig.load(folder, LlamaConfig.load(target))


def test_a_chain_has_all_modules_and_uses_the_first(target: Path, tmp_path: Path) -> None:
    folder = with_modules(target, tmp_path / "with", "deepseek", 4, 5, 6)
    config = read_chain(folder, folder)
    assert (config.numbers, config.max_steps, config.proposed_draft_steps) == ((4, 5, 6), 3, 3)
    used = config.with_modules(2)
    assert (used.used_numbers, used.max_steps, used.num_hidden_layers) == ((4, 5), 3, 2)
    assert used.facts == {
        "mtp_layout": "DeepSeek-V3",
        "mtp_modules": 3,
        "mtp_modules_used": 2,
        "mtp_hidden_states": "the module before",
    }
    assert len(MtpChainHead.load(folder, Llama.load(folder, device=CPU)).modules) == 3


@pytest.mark.parametrize(
    ("numbers", "stated", "missing"),
    [((4, 6), 3, "5"), ((4, 5), 4, "6, 7"), ((4, 6), 5, "5, 7, 8")],
)
def test_a_chain_with_a_gap_is_refused(
    target: Path, tmp_path: Path, numbers: tuple[int, ...], stated: int, missing: str
) -> None:
    folder = with_modules(
        target, tmp_path / "with", "deepseek", *numbers, num_nextn_predict_layers=stated
    )
    with pytest.raises(CheckpointError, match=f"and none of {missing}; download the checkpoint"):
        read_chain(folder, folder)


def test_one_module_or_several_decide_the_algorithm(target: Path, tmp_path: Path) -> None:
    one = export_module(target, tmp_path / "one")
    several = write_mtp_modules(target, tmp_path / "several", 2)
    assert (algorithm_of(one), algorithm_of(several)) == ("MTP", "MTP_CHAIN")


STEP_KEYS: dict[str, Any] = {
    "architectures": ["Step3p5ForCausalLM"],
    "num_nextn_predict_layers": 2,
    "num_attention_groups": 2,
    "attention_other_setting": {"num_attention_heads": 6, "num_attention_groups": 3},
    "layer_types": [*["full_attention"] * 4, *["sliding_attention"] * 2],
    "sliding_window": 5,
    "partial_rotary_factors": [1.0] * 6,
    "rope_theta": [1e4] * 6,
    "swiglu_limits_shared": [7.0] * 4 + [0.0] * 2,
}
MIMO_V2_KEYS: dict[str, Any] = {
    "architectures": ["MiMoV2FlashForCausalLM"],
    "num_nextn_predict_layers": 2,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 8,
    "swa_v_head_dim": 6,
    "sliding_window_size": 5,
    "layernorm_epsilon": 1e-4,
}


def published(target: Path, folder: Path, **keys: object) -> Path:
    """Write a config.json without tensors."""
    folder.mkdir()
    config = json.loads((target / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | keys))
    return folder


def test_modules_of_step_have_the_entries_after_those_of_the_layers(
    target: Path, tmp_path: Path
) -> None:
    config = read_chain(published(target, tmp_path / "step", **STEP_KEYS), target)
    assert config.numbers == (4, 5)
    assert (
        config.decoder.num_attention_heads,
        config.decoder.num_key_value_heads,
        config.window,
    ) == (6, 3, 5)
    assert config.decoder.has_head_gate
    assert config.aux_spec.layers == (3,)
    assert (config.inputs.is_chained, config.recurrent_width) == (True, 12)


def test_modules_of_mimo_v2_are_sliding_layers(target: Path, tmp_path: Path) -> None:
    config = read_chain(published(target, tmp_path / "mimo", **MIMO_V2_KEYS), target)
    decoder = config.decoder
    assert (decoder.head_dim, decoder.v_head_dim, decoder.num_key_value_heads) == (8, 6, 2)
    assert (decoder.rms_norm_eps, config.window) == (1e-4, 6)
    assert (config.inputs.is_chained, config.recurrent_width) == (False, 0)
    assert config.facts["mtp_hidden_states"] == "the target"


@pytest.mark.parametrize(
    ("base", "keys", "message"),
    [
        (STEP_KEYS, {"swiglu_limits_shared": [0.0] * 4 + [7.0] * 2}, "limits in a module"),
        (
            STEP_KEYS,
            {"rope_theta": [1e4] * 5},
            "rope_theta .*must have 2 equal entries for the mod",
        ),
        (STEP_KEYS, {"partial_rotary_factors": [1.0] * 5 + [0.5]}, "must have 2 equal entries"),
        (STEP_KEYS, {"attention_bias": True}, "attention_bias is True; biases of attention"),
        (MIMO_V2_KEYS, {"attention_projection_layout": "fused_qkv"}, "q, k and v in one map"),
        ({}, {"architectures": ["InklingForConditionalGeneration"]}, "short convolutions"),
    ],
)
def test_what_a_chain_cannot_have_is_refused_by_its_key(
    target: Path, tmp_path: Path, base: dict[str, Any], keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_chain(published(target, tmp_path / "x", **(base | keys)), target)
