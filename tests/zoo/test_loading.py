"""Loading is strict: what does not fit is named, what belongs to images is skipped."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdecode_engine.model.checkpoint import TensorError
from specdecode_engine.model.implementations import implementation_of, read_config
from specdecode_engine.model.transformers.attention import UnsupportedModel
from specdecode_engine.model.transformers.config import TransformersConfig
from specdecode_engine.model.transformers.model import TransformersModel
from specdecode_engine.model.weights import tensor_bytes
from tests.zoo.conftest import MakeModel
from zoo.logits import TOLERANCE, worst_differences
from zoo.models import ZooModel

CPU = torch.device("cpu")
NAME = "model.layers.1.mlp.down_proj.weight"


def load(folder: Path) -> TransformersModel:
    return TransformersModel.load(TransformersConfig.load(folder), device=CPU)


@pytest.fixture
def folder(tmp_path: Path, make_model: MakeModel) -> Path:
    """A copy of a checkpoint, to be damaged."""
    return Path(shutil.copytree(make_model("gemma2")[0], tmp_path / "copy"))


def rewrite(folder: Path, old: str, new: str | None, tensor: torch.Tensor | None = None) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    stored = tensors.pop(old)
    if new is not None:
        tensors[new] = stored if tensor is None else tensor
    save_file(tensors, file, metadata={"format": "pt"})


def test_a_missing_tensor_is_named(folder: Path) -> None:
    rewrite(folder, NAME, None)
    with pytest.raises(TensorError, match=f"lacks {NAME}"):
        load(folder)


def test_a_renamed_tensor_is_named(folder: Path) -> None:
    rewrite(folder, NAME, "model.layers.1.mlp.out_proj.weight")
    with pytest.raises(TensorError, match=NAME):
        load(folder)


def test_a_left_over_tensor_is_named(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.extra.weight"] = torch.zeros(3)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TensorError, match=r"holds, unused, model\.layers\.0\.extra\.weight"):
        load(folder)


def test_a_reshaped_tensor_is_named_with_both_shapes(folder: Path) -> None:
    rewrite(folder, NAME, NAME, torch.zeros(64, 88))
    with pytest.raises(TensorError, match=NAME + r" is \[64, 88\] instead of \[64, 90\]"):
        load(folder)


def test_a_file_that_is_cut_short_is_refused(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(TensorError, match="download"):
        load(folder)


def test_bytes_of_a_model_are_those_of_its_tensors(make_model: MakeModel) -> None:
    folder, reference = make_model("gemma2")
    model = load(folder)
    stored = sum(p.numel() for p in reference.parameters()) * 4
    tables = sum(tensor_bytes(pair) for pair in _rotary_tables(model))
    extra = tensor_bytes(model) - stored - tables
    assert 0 <= extra < 1000  # single numbers and the weights of norms plus one


def _rotary_tables(model: TransformersModel) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [
        pair
        for module in model.network.modules()
        if hasattr(module, "tables")
        for pair in module.tables.values()  # type: ignore[operator]
    ]


def test_shards_and_tied_heads_load(tmp_path: Path, make_model: MakeModel) -> None:
    reference = make_model("gemma3_text")[1]
    reference.save_pretrained(tmp_path, max_shard_size="40KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    model = load(tmp_path)
    assert model.head.plain_weight().data_ptr() == model.embedding.data_ptr()
    assert max(worst_differences(reference, model).values()) <= TOLERANCE


def test_loading_takes_the_memory_of_the_model(tmp_path: Path, make_model: MakeModel) -> None:
    """In a process of its own, which reads shards of float32 as bfloat16."""
    from transformers import AutoModelForCausalLM, Qwen2Config

    config = Qwen2Config(
        vocab_size=4000,
        hidden_size=512,
        intermediate_size=2048,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path, max_shard_size="40MB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    tiny = make_model("qwen2")[0]
    command = (sys.executable, "-m", "tests.zoo.loading_memory", tiny, tmp_path, "bfloat16")
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    measured = json.loads(done.stdout.splitlines()[-1])
    assert measured["model"] > 70e6
    buffers = 24 << 20  # of readers and of maps that are being fused, whatever the model's size
    assert measured["peak"] <= 1.1 * measured["model"] + buffers, measured


def test_the_text_model_of_a_wrapper_loads_without_its_vision_tensors(
    tmp_path: Path, make_model: MakeModel, models: dict[str, ZooModel]
) -> None:
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    text = make_model("gemma3_text")[1]
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 8,
    }
    keys = {**models["gemma3_text"].keys, "model_type": "gemma3_text"}
    whole = Gemma3ForConditionalGeneration(
        Gemma3Config(text_config=keys, vision_config=vision, mm_tokens_per_image=1)
    )
    whole.model.language_model.load_state_dict(text.model.state_dict())
    whole.save_pretrained(tmp_path)
    model = load(tmp_path)
    assert model.config.model_type == "gemma3_text"
    assert model.skipped_tensors
    assert not any("language_model" in name for name in model.skipped_tensors)
    assert max(worst_differences(text, model).values()) <= TOLERANCE


def test_pickles_are_read_as_weights_only(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    expected = tensors["model.embed_tokens.weight"]
    assert torch.equal(load(folder).embedding, expected)
    torch.save({"model.embed_tokens.weight": Evil()}, folder / "pytorch_model.bin")
    with pytest.raises(Exception, match=r"(?i)weights.only"):
        load(folder)
    assert not Evil.has_run


class Evil:
    """Runs code when it is unpickled."""

    has_run = False

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return _mark, ("x",)


def _mark(_: str) -> None:
    Evil.has_run = True


def write_config(folder: Path, keys: dict[str, object]) -> Path:
    (folder / "config.json").write_text(json.dumps(keys))
    return folder


def test_an_unknown_model_type_is_refused_and_its_code_never_runs(tmp_path: Path) -> None:
    keys: dict[str, object] = {
        "model_type": "nobody_knows",
        "architectures": ["NobodyForCausalLM"],
        "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"},
    }
    ran = tmp_path / "ran"
    (tmp_path / "code.py").write_text(f"open({str(ran)!r}, 'w')")
    with pytest.raises(UnsupportedModel, match="nobody_knows"):
        read_config(write_config(tmp_path, keys))
    assert not ran.exists()


def test_an_encoder_is_refused(tmp_path: Path) -> None:
    keys: dict[str, object] = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}
    with pytest.raises(UnsupportedModel, match="t5"):
        read_config(write_config(tmp_path, keys))


def test_auto_prefers_the_native_implementation(make_model: MakeModel) -> None:
    folder = make_model("llama")[0]
    assert implementation_of(read_config(folder)) == "native"
    assert implementation_of(read_config(folder, "transformers")) == "transformers"
    assert implementation_of(read_config(make_model("phi3")[0])) == "transformers"
    with pytest.raises(Exception, match="architectures"):
        read_config(make_model("phi3")[0], "native")
