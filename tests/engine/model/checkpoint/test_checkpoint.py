"""A checkpoint that does not fit is refused before a weight is read, and the message names it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from specdecode_api.report import StartProgress
from specdecode_engine.model.checkpoint import checkpoint
from specdecode_engine.model.checkpoint.config_file import CheckpointError
from specdecode_engine.model.layers.layers import Mlp
from specdecode_engine.model.target.llama import Llama

CPU = torch.device("cpu")
Tensors = dict[str, Tensor]


def shard(folder: Path, config: dict[str, object], tensors: Tensors) -> list[Path]:
    """Write two shards and their index."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    names = sorted(tensors)
    halves = [names[: len(names) // 2], names[len(names) // 2 :]]
    files = [folder / f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for file, half in zip(files, halves, strict=True):
        save_file({name: tensors[name] for name in half}, file)
    weight_map = {n: f.name for f, half in zip(files, halves, strict=True) for n in half}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return files


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        Llama.load(folder, device=CPU)
    return str(caught.value)


def same(one: object, other: object) -> bool:
    assert isinstance(one, Tensor)
    assert isinstance(other, Tensor)
    return torch.equal(one, other)


def test_shards_and_single_file_are_the_same_model(
    tmp_path: Path, config: dict[str, object], tensors: Tensors, write: Any
) -> None:
    single = Llama.load(write(tmp_path / "single", config, tensors), device=CPU)
    shard(tmp_path / "sharded", config, tensors)
    sharded = Llama.load(tmp_path / "sharded", device=CPU)
    assert same(single.head.weight, sharded.head.weight)
    for one, other in zip(single.layers, sharded.layers, strict=True):
        assert same(one.attention.qkv.weight, other.attention.qkv.weight)


def test_a_missing_tensor_is_named(
    tmp_path: Path, config: dict[str, object], tensors: Tensors, write: Any
) -> None:
    del tensors["model.layers.2.mlp.up_proj.weight"]
    message = refusal(write(tmp_path, config, tensors))
    assert str(tmp_path) in message
    assert "lacks model.layers.2.mlp.up_proj.weight; the files are incomplete" in message


def test_an_extra_tensor_is_named(
    tmp_path: Path, config: dict[str, object], tensors: Tensors, write: Any
) -> None:
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(24)
    message = refusal(write(tmp_path, config, tensors))
    assert "holds, unused, model.layers.0.self_attn.q_proj.bias" in message


def test_many_faults_are_counted(
    tmp_path: Path, config: dict[str, object], tensors: Tensors, write: Any
) -> None:
    kept = {name: t for name, t in tensors.items() if "layers.3" not in name}
    assert "and 1 more" in refusal(write(tmp_path, config, kept))


def test_a_wrong_shape_is_named(
    tmp_path: Path, config: dict[str, object], tensors: Tensors, write: Any
) -> None:
    tensors["model.norm.weight"] = torch.zeros(13)
    message = refusal(write(tmp_path, config, tensors))
    assert "model.norm.weight is [13] instead of [12]" in message


def test_a_quantized_tensor_is_named(
    tmp_path: Path, config: dict[str, object], tensors: Tensors, write: Any
) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    assert f"{name} is of type F8_E4M3; convert it" in refusal(write(tmp_path, config, tensors))


def test_a_truncated_file_is_named(
    tmp_path: Path, config: dict[str, object], tensors: Tensors
) -> None:
    file = shard(tmp_path, config, tensors)[1]
    file.write_bytes(file.read_bytes()[:-100])
    message = refusal(tmp_path)
    assert message.startswith(f"{file}: damaged or cut short")
    assert message.endswith("download it again")


def test_a_missing_shard_is_named(
    tmp_path: Path, config: dict[str, object], tensors: Tensors
) -> None:
    file = shard(tmp_path, config, tensors)[0]
    file.unlink()
    assert refusal(tmp_path).startswith(f"{file}: no such file, but model.safetensors.index.json")


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": 3}', "{}"])
def test_a_broken_index_is_named(
    tmp_path: Path, config: dict[str, object], tensors: Tensors, text: str
) -> None:
    shard(tmp_path, config, tensors)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(text)
    assert refusal(tmp_path).startswith(f"{index}: unreadable")


def test_pickles_are_read_as_weights_only(
    tmp_path: Path, config: dict[str, object], tensors: Tensors
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    model = Llama.load(tmp_path, device=torch.device("cpu"))
    assert torch.equal(model.embedding, tensors["model.embed_tokens.weight"])
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert "pytorch_model.bin: damaged or cut short" in refusal(tmp_path)


def test_pickles_of_other_names_are_refused(tmp_path: Path, config: dict[str, object]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "consolidated.bin").write_bytes(b"")
    message = refusal(tmp_path)
    assert "consolidated.bin" in message
    assert "convert it to safetensors" in message


def test_an_empty_folder_is_named(tmp_path: Path, config: dict[str, object]) -> None:
    assert refusal(tmp_path).startswith(f"{tmp_path / 'config.json'}: no such file")
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert refusal(tmp_path).startswith(f"{tmp_path / 'model.safetensors'}: no such file")


def test_stored_inverse_frequencies_are_harmless(
    tmp_path: Path, config: dict[str, object], tensors: Tensors, write: Any
) -> None:
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(3)
    Llama.load(write(tmp_path, config, tensors), device=CPU)


def test_a_tied_head_may_be_absent_or_equal(
    tmp_path: Path, config: dict[str, object], tensors: Tensors, write: Any
) -> None:
    config["tie_word_embeddings"] = True
    assert "lm_head.weight differs from" in refusal(write(tmp_path, config, tensors))
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tied = Llama.load(write(tmp_path, config, tensors), device=CPU)
    assert tied.head.weight is tied.embedding
    del tensors["lm_head.weight"]
    Llama.load(write(tmp_path, config, tensors), device=CPU)
    config["tie_word_embeddings"] = False
    assert "lacks lm_head.weight" in refusal(write(tmp_path, config, tensors))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_weights_and_biases_are_the_stored_ones_in_order(
    tmp_path: Path, config: dict[str, object], tensors: Tensors, write: Any, dtype: torch.dtype
) -> None:
    config["attention_bias"] = True
    prefix = "model.layers.1.self_attn."
    sizes = {"q": 24, "k": 12, "v": 12, "o": 12}
    for number in range(4):
        for part, size in sizes.items():
            name = f"model.layers.{number}.self_attn.{part}_proj.bias"
            tensors[name] = torch.arange(size) + 0.1
    model = Llama.load(write(tmp_path, config, tensors), dtype=dtype, device=CPU)
    layer = model.layers[1]
    for kind, fused in (("weight", layer.attention.qkv.weight), ("bias", layer.attention.qkv.bias)):
        assert same(
            fused, torch.cat([tensors[f"{prefix}{n}_proj.{kind}"] for n in "qkv"]).to(dtype)
        )
    halves = [tensors[f"model.layers.1.mlp.{name}_proj.weight"] for name in ("gate", "up")]
    assert isinstance(layer.mlp, Mlp)
    assert same(layer.mlp.gate_up.weight, torch.cat(halves).to(dtype))


@pytest.mark.parametrize(
    ("asked", "declared", "stored", "got"),
    [
        (None, "bfloat16", torch.bfloat16, torch.bfloat16),
        (None, None, torch.float16, torch.float16),
        (torch.float64, "float32", torch.float32, torch.float64),
    ],
)
def test_the_type_is_the_asked_one_or_the_checkpoint_s(
    tmp_path: Path,
    config: dict[str, object],
    tensors: Tensors,
    write: Any,
    asked: torch.dtype | None,
    declared: str | None,
    stored: torch.dtype,
    got: torch.dtype,
) -> None:
    config["torch_dtype"] = declared
    halves = {name: tensor.to(stored) for name, tensor in tensors.items()}
    model = Llama.load(write(tmp_path, config, halves), dtype=asked, device=CPU)
    mlp = model.layers[0].mlp
    assert isinstance(mlp, Mlp)
    assert {model.dtype, model.head.weight.dtype, mlp.down.weight.dtype} == {got}


def test_progress_is_shown_only_when_asked(
    tmp_path: Path,
    config: dict[str, object],
    tensors: Tensors,
    write: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = write(tmp_path / "tiny", config, tensors)
    Llama.load(folder, device=CPU)
    assert capsys.readouterr().err == ""
    reports: list[StartProgress] = []
    Llama.load(folder, device=CPU, progress=reports.append)
    shown = capsys.readouterr()
    assert "loading tiny: 100%" in shown.err
    assert shown.out == ""
    assert (reports[0].stage, reports[0].done, reports[0].unit) == ("loading tiny", 0, "B")
    assert reports[-1].done == reports[-1].total == sum(each.nbytes for each in tensors.values())


def test_weights_outlive_their_file(
    tmp_path: Path, config: dict[str, object], tensors: Tensors, write: Any
) -> None:
    model = Llama.load(write(tmp_path, config, tensors), device=CPU)
    file = tmp_path / "model.safetensors"
    with file.open("r+b") as opened:
        opened.seek(-64, 2)
        opened.write(b"\xff" * 64)
    assert not any(weight.isnan().any() for weight in (model.embedding, model.norm.weight))


def test_shards_are_mapped_one_at_a_time_and_every_tensor_is_read_once(
    tmp_path: Path, config: dict[str, object], tensors: Tensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the host needs no more than the model and one shard."""
    shard(tmp_path, config, tensors)
    read: list[str] = []
    is_mapped = False

    @contextmanager
    def watched(file: Path, framework: str) -> Iterator[Any]:
        nonlocal is_mapped
        assert not is_mapped, f"{file} is opened before the last one is closed"
        is_mapped = True
        with safe_open(file, framework=framework) as opened:
            yield opened
        is_mapped = False

    opened_read = checkpoint.Checkpoint.read

    def counted(self: checkpoint.Checkpoint, name: str, into: Tensor) -> None:
        read.append(name)
        opened_read(self, name, into)

    monkeypatch.setattr(checkpoint, "safe_open", watched)
    monkeypatch.setattr(checkpoint.Checkpoint, "read", counted)
    Llama.load(tmp_path, device=CPU)
    assert sorted(read) == sorted(tensors)
