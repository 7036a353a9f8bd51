"""What is understood of a checkpoint with MTP modules, and what is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdecode_engine.model.config import LlamaConfig
from specdecode_engine.model.config_file import CheckpointError, DraftMismatch
from specdecode_engine.model.llama import Llama
from specdecode_engine.model.mtp import MtpHead
from specdecode_engine.model.mtp_config import MtpConfig, has_modules
from specdecode_engine.model.mtp_layout import DEEPSEEK, MIMO, QWEN3_NEXT
from specdecode_engine.startup.draft_methods.registry import algorithm_of
from tests.engine.mtp_checkpoints import export_module, with_modules

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
    assert has_modules(folder)
    assert not has_modules(target)
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


def test_the_first_of_several_modules_is_reused(target: Path, tmp_path: Path) -> None:
    folder = with_modules(target, tmp_path / "with", "deepseek", 4, 5, num_nextn_predict_layers=2)
    config = read(folder, folder)
    assert (config.numbers, config.facts["mtp_modules"]) == ((4, 5), 2)
    head = MtpHead.load(folder, Llama.load(folder, device=CPU))
    stored = load_file(folder / "model.safetensors")["model.layers.4.eh_proj.weight"]
    assert torch.equal(head.module.projection.plain_weight(), stored)
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
    ("keys", "said"),
    [
        ({"architectures": ["FalconForCausalLMNextN"]}, "architectures is"),
        ({"kv_lora_rank": 8}, "kv_lora_rank is 8; .* multi-head latent attention"),
        ({"use_sliding_window": True}, "use_sliding_window is True"),
        ({"partial_rotary_factor": 0.1}, "partial_rotary_factor is 0.1; of head_dim 6"),
    ],
)
def test_what_a_module_cannot_have_is_refused_by_its_key(
    target: Path, tmp_path: Path, keys: dict[str, object], said: str
) -> None:
    folder = export_module(target, tmp_path / "export")
    change(folder, **keys)
    with pytest.raises(CheckpointError, match=said):
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
    assert has_modules(folder)
    assert read(folder, target).numbers == (4,)
    change(folder, num_nextn_predict_layers=0)
    assert not has_modules(folder)
