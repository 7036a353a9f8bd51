"""Loading is strict: what does not fit is named, what belongs to images is skipped."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bench.cpu.loading_memory.checkpoints import FORMATS, write_shards
from bench.cpu.loading_memory.measure import WAYS, measured
from checks.zoo.__main__ import load_alone
from checks.zoo.logits import TOLERANCE, worst_differences
from checks.zoo.models import ZooModel
from specdecode_api.boot import ModelImplementation
from specdecode_engine.model.checkpoint.checkpoint import TensorError
from specdecode_engine.model.checkpoint.config_file import ConfigError
from specdecode_engine.model.checkpoint.pickle_store import PICKLE, PICKLE_INDEX
from specdecode_engine.model.checkpoint.record_tensors import tensor_bytes
from specdecode_engine.model.implementations import implementation_of, read_config
from specdecode_engine.model.layers.linears import Linears
from specdecode_engine.model.target.transformers_config import TransformersConfig, UnsupportedModel
from specdecode_engine.model.transformers.model import TransformersModel
from specdecode_kernels import PackedWeight, choose_backend
from tests.zoo.conftest import MakeModel

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


LEAST_BYTES = {"float8": 35e6, "mxfp4": 24e6, "nvfp4": 24e6}
"""Of models whose weights stay as they are stored, some less than their files."""


def test_loading_takes_the_memory_of_the_model(shards: Path, make_model: MakeModel) -> None:
    """In a process of its own, with weights packed; `make bench-loading` has larger models."""
    folders = [shards, *(shards.parent / name for name in FORMATS)]
    ways = [way for way in WAYS if "packed" in way]
    found = measured(make_model("qwen2")[0], ways, folders)
    assert len(found) == len(ways) * len(folders)
    buffers = 16 << 20  # of readers and of maps that are being fused, whatever the model's size
    for one in found:
        is_kept = one["format"] in LEAST_BYTES and one["way"] == "native+packed"
        assert one["model"] > (LEAST_BYTES[one["format"]] if is_kept else 70e6), found
        assert one["peak"] <= 1.1 * one["model"] + buffers, found
        assert not is_kept or one["model"] <= 1.03 * one["files"], found
        assert not is_kept or one["model"] == pytest.approx(one["plan"], rel=0.02), found


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 80 MB in shards; other formats of it lie next to it."""
    folder = tmp_path_factory.mktemp("formats") / "shards"
    sizes = {
        "vocab_size": 4000,
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    }
    write_shards(folder, "qwen2", sizes, "20MB")
    assert len(list(folder.glob("*.safetensors"))) > 3
    for name, write in FORMATS.items():
        write(folder, folder.parent / name)
    return folder


@pytest.mark.parametrize("implementation", ["native", "transformers"])
def test_an_embedding_that_is_the_head_is_kept_next_to_its_packed_copy(
    implementation: ModelImplementation, tmp_path: Path, models: dict[str, ZooModel]
) -> None:
    """Packing takes the memory of any other weight."""
    keys = {**models["qwen3"].keys, "vocab_size": 128}  # blocks of 64 fit it
    replace(models["qwen3"], keys=keys).make(tmp_path)
    linears = Linears.of(choose_backend("auto", CPU, torch.float32, 20))
    plain, packed = (load_alone(tmp_path, implementation, one) for one in (Linears(), linears))
    stored = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    assert isinstance(packed.head.weight, PackedWeight)
    assert torch.equal(packed.embedding, stored)
    assert torch.equal(packed.head.plain_weight(), plain.head.plain_weight())


def pickled(folder: Path, **options: bool) -> dict[str, torch.Tensor]:
    """Replace the safetensors of a folder by a pickle of the same tensors."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / PICKLE, **options)
    return tensors


@pytest.mark.parametrize("is_zip", [True, False], ids=["archive", "before torch 1.6"])
def test_pickles_are_read_as_weights_only(folder: Path, is_zip: bool) -> None:
    tensors = pickled(folder, _use_new_zipfile_serialization=is_zip)
    model = load(folder)
    assert torch.equal(model.embedding, tensors["model.embed_tokens.weight"])
    assert model.dtype == torch.float32
    torch.save({"model.embed_tokens.weight": Evil()}, folder / PICKLE)
    with pytest.raises(TensorError, match=r"weights only .*; download it again, or convert it"):
        load(folder)
    assert not Evil.has_run


def test_pickles_that_do_not_fit_are_named(folder: Path) -> None:
    tensors = pickled(folder)
    whole = (folder / PICKLE).read_bytes()
    missing = {name: tensor for name, tensor in tensors.items() if name != NAME}
    for content, fault in [
        (missing, f"lacks {NAME}"),
        ({**tensors, NAME: torch.zeros(64, 88)}, NAME + r" is \[64, 88\] instead of \[64, 90\]"),
        ({**tensors, "step": 3}, "step is a int, not a tensor"),
        (list(tensors.values()), "holds a list, not tensors by name"),
    ]:
        torch.save(content, folder / PICKLE)
        with pytest.raises(TensorError, match=fault):
            load(folder)
    for size in (0, 100, len(whole) // 2):
        (folder / PICKLE).write_bytes(whole[:size])
        with pytest.raises(TensorError, match=r"damaged or cut short|weights only"):
            load(folder)


def test_shards_of_pickles_with_a_repeated_head_load(tmp_path: Path, make_model: MakeModel) -> None:
    """As older exports wrote a tied head: the embedding under two names."""
    folder, reference = make_model("gemma3_text")
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    names, weight_map = sorted(tensors), dict[str, str]()
    for shard in range(3):
        file = f"pytorch_model-0000{shard + 1}-of-00003.bin"
        part = {name: tensors[name] for name in names[shard::3]}
        torch.save(part, tmp_path / file)
        weight_map |= dict.fromkeys(part, file)
    (tmp_path / PICKLE_INDEX).write_text(json.dumps({"weight_map": weight_map}))
    shutil.copy(folder / "config.json", tmp_path)
    assert max(worst_differences(reference, load(tmp_path)).values()) <= TOLERANCE


def test_config_json_is_read_by_transformers_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoConfig

    reads, read = list[Path](), AutoConfig.from_pretrained

    def counted(path: Path, **options: bool) -> object:
        reads.append(path)
        return read(path, **options)

    monkeypatch.setattr(AutoConfig, "from_pretrained", counted)
    config = TransformersConfig.load(folder)
    for _ in range(2):
        assert TransformersModel.load(config, device=CPU).config is config
    assert reads == [folder]


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


def test_a_text_config_that_is_no_object_is_refused_by_its_key(tmp_path: Path) -> None:
    keys: dict[str, object] = {"model_type": "llama", "architectures": ["A"], "text_config": 1}
    with pytest.raises(ConfigError, match="text_config is 1; it must be an object"):
        read_config(write_config(tmp_path, keys))


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
