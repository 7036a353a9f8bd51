"""Every stored tensor that is missing, renamed, added or reshaped is named before it is read."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdecode_engine.model.checkpoint.checkpoint import Checkpoint, StoredTensor, TensorError
from specdecode_engine.model.target.transformers_config import TransformersConfig
from specdecode_engine.model.transformers.loading import check_tensors, make_network
from specdecode_engine.model.transformers.model import TransformersModel
from specdecode_engine.startup.model_check import CheckOptions, check_pair
from tests.zoo.conftest import MakeModel

CPU = torch.device("cpu")
TYPES = ("gemma2", "phi3", "granite", "mixtral", "qwen3_moe", "glm4_moe", "gpt_oss", "llama4_text")
"""Tied and untied, fused maps, experts one by one, under other names, with dense layers, fused."""

Tensors = dict[str, StoredTensor]


def deleted(tensors: Tensors, name: str) -> tuple[Tensors, str]:
    rest = {other: tensor for other, tensor in tensors.items() if other != name}
    return rest, f"lacks {name};"


def renamed(tensors: Tensors, name: str) -> tuple[Tensors, str]:
    rest, message = deleted(tensors, name)
    return {**rest, f"{name}_old": tensors[name]}, message


def added(tensors: Tensors, name: str) -> tuple[Tensors, str]:
    return {**tensors, f"{name}_old": tensors[name]}, f"holds, unused, {name}_old;"


def reshaped(tensors: Tensors, name: str) -> tuple[Tensors, str]:
    stored = tensors[name]
    shape = (*stored.shape[:-1], stored.shape[-1] + 1)
    message = f"{name} is {list(shape)} instead of {list(stored.shape)};"
    return {**tensors, name: replace(stored, shape=shape)}, message


def rounded(tensors: Tensors, name: str) -> tuple[Tensors, str]:
    """Only of those whose names are those of parameters in every family."""
    integers = replace(tensors[name], dtype=torch.int64)
    return {**tensors, name: integers}, f"holds integers in {name};"


@pytest.mark.parametrize("name", TYPES)
def test_a_fault_of_any_tensor_is_an_error_that_names_it(name: str, make_model: MakeModel) -> None:
    folder = make_model(name)[0]
    whole = Checkpoint.open(folder)
    network = make_network(TransformersConfig.load(folder), torch.float32)
    assert check_tensors(network, whole) == whole.tensors.keys()
    for tensor in whole.tensors:
        changes = [deleted, renamed, added, reshaped]
        changes += [rounded] if tensor.endswith(".weight") else []
        for change in changes:
            assert_error_names(network, whole, tensor, change)


def assert_error_names(
    network: Any, whole: Checkpoint, tensor: str, change: Callable[..., tuple[Tensors, str]]
) -> None:
    faulty, message = change(dict(whole.tensors), tensor)
    with pytest.raises(TensorError) as caught:
        check_tensors(network, replace(whole, tensors=faulty))
    assert message in str(caught.value)
    assert str(whole.folder) in str(caught.value)


def test_experts_with_numbers_that_config_json_lacks_are_named(make_model: MakeModel) -> None:
    """As many tensors as experts are not enough: transformers would take these in another order."""
    folder = make_model("mixtral")[0]
    whole = Checkpoint.open(folder)
    network = make_network(TransformersConfig.load(folder), torch.float32)
    tensors = {
        name.replace("experts.2.w1", "experts.6.w1"): one for name, one in whole.tensors.items()
    }
    with pytest.raises(TensorError, match=r"lacks .*layers\.0\..*experts\.2\.w1\.weight"):
        check_tensors(network, replace(whole, tensors=tensors))


def test_experts_in_one_tensor_are_read_where_the_type_has_them_one_by_one(
    make_model: MakeModel, tmp_path: Path
) -> None:
    """As other tools store them: under the names of transformers' parameters."""
    folder, reference = make_model("qwen3_moe")
    reference.save_pretrained(tmp_path, save_original_format=False)
    stored = Checkpoint.open(tmp_path)
    assert "model.layers.0.mlp.experts.gate_up_proj" in stored.tensors
    model = TransformersModel.load(TransformersConfig.load(tmp_path), device=CPU)
    wanted = TransformersModel.load(TransformersConfig.load(folder), device=CPU)
    ours, theirs = (one.mixtures[0].weights.gate_up for one in (model, wanted))
    assert isinstance(ours, torch.Tensor)
    assert isinstance(theirs, torch.Tensor)
    assert torch.equal(ours, theirs)
    network = make_network(TransformersConfig.load(folder), torch.float32)
    first = "model.layers.0.mlp.experts.0.up_proj.weight"
    both = {**stored.tensors, first: Checkpoint.open(folder).tensors[first]}
    with pytest.raises(TensorError, match=f"holds, unused, {first};"):
        check_tensors(network, replace(stored, tensors=both))


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("mixtral", "block_sparse_moe.experts.3.w2.weight"),
        ("glm4_moe", "mlp.experts.3.gate_proj.weight"),
        ("granite", "mlp.up_proj.weight"),
        ("phi3", "input_layernorm.weight"),
    ],
)
def test_loading_and_checking_name_the_same_tensor(
    name: str, lost: str, make_model: MakeModel, tmp_path: Path
) -> None:
    folder = make_model(name)[0]
    intact = check_pair(folder, None, CheckOptions()).target
    assert (intact.reason, intact.has_tensors) == (None, True)
    tensors = load_file(folder / "model.safetensors")
    lost = f"model.layers.1.{lost}"
    del tensors[lost]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(TensorError) as caught:
        TransformersModel.load(TransformersConfig.load(tmp_path), device=CPU)
    assert f"lacks {lost};" in str(caught.value)
    pair = check_pair(tmp_path, None, CheckOptions())
    assert pair.reasons == (str(caught.value),)
