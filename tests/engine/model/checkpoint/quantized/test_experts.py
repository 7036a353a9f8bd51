"""Quantized experts load into transformers' modules, which keep those of a layer in one tensor."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GptOssConfig, GptOssForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.utils.quantization_config import Mxfp4Config

from checks.zoo.logits import TOLERANCE, worst_differences
from specdecode_engine.model.checkpoint.checkpoint import TensorError
from specdecode_engine.model.checkpoint.quantized.store import open_checkpoint, open_tensors
from specdecode_engine.model.layers.sparse_mlp import SparseMlp
from specdecode_engine.model.target.llama import Llama
from specdecode_engine.model.target.transformers_config import TransformersConfig
from specdecode_engine.model.transformers.loading import (
    check_tensors,
    load_network,
    make_network,
    text_tensors,
)
from specdecode_engine.model.transformers.model import TransformersModel
from specdecode_engine.startup.model_check import CheckOptions, check_pair
from specdecode_kernels import MXFP4, QuantizedTensor
from tests.engine.model.checkpoint.quantized.writers import (
    CASES,
    draw_mxfp4_experts,
    write_quantized,
)

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "num_experts_per_tok": 2,
}


def loaded(folder: Path) -> dict[str, Tensor]:
    config = TransformersConfig.load(folder)
    store, skipped = text_tensors(config, open_tensors(folder, config.quantization))
    assert skipped == ()
    used = check_tensors(make_network(config, torch.float32), store)
    network = load_network(config, torch.float32, CPU, store, used)
    tensors: dict[str, Tensor] = network.state_dict()
    return tensors


def assert_equal(tensors: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensors[name], tensor), name


@pytest.fixture
def qwen3_moe(tmp_path: Path) -> Path:
    """A checkpoint with one linear map for each expert, as published."""
    sizes = {**SIZES, "num_experts": 4, "moe_intermediate_size": 32}
    Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes)).save_pretrained(tmp_path / "plain")
    return tmp_path / "plain"


@pytest.mark.parametrize(
    "name", ["fp8-deepseek", "fp8-tensor", "w4a16-group", "gptq", "modelopt-fp8"]
)
def test_experts_of_their_own_are_gathered(name: str, qwen3_moe: Path, tmp_path: Path) -> None:
    """Natively as they are stored, where kernels take them; transformers' modules are plain."""
    plain = write_quantized(CASES[name], qwen3_moe, tmp_path / "quantized")
    assert "model.layers.1.mlp.experts.3.down_proj.weight" in plain
    save_file(plain, qwen3_moe / "model.safetensors", metadata={"format": "pt"})
    assert_equal(loaded(tmp_path / "quantized"), loaded(qwen3_moe))
    reference = Qwen3MoeForCausalLM.from_pretrained(qwen3_moe, dtype=torch.float32)
    folder = tmp_path / "quantized"
    model = TransformersModel.load(TransformersConfig.load(folder), device=CPU)
    native = Llama.load(folder, device=CPU, dtype=torch.float32, open_store=open_checkpoint)
    for implementation in (model, native):
        assert max(worst_differences(reference, implementation).values()) <= TOLERANCE
    mlp = native.layers[1].mlp
    assert isinstance(mlp, SparseMlp)
    assert isinstance(mlp.experts.weights.down, QuantizedTensor)
    assert isinstance(mlp.router.weight, Tensor)


def test_experts_with_desc_act_are_planned_as_dequantized(qwen3_moe: Path, tmp_path: Path) -> None:
    """Each expert has an order of its own, and all experts of a layer are one map."""
    folder = tmp_path / "quantized"
    write_quantized(CASES["gptq-v2-shuffled"], qwen3_moe, folder)
    checked = check_pair(folder, None, CheckOptions(torch.float32)).target
    assert checked.reason is None
    assert not checked.keeps_quantized
    model = Llama.load(folder, device=CPU, dtype=torch.float32, open_store=open_checkpoint)
    experts = 0
    for layer in model.layers:
        assert isinstance(layer.mlp, SparseMlp)
        weights = layer.mlp.experts.weights
        assert isinstance(weights.gate_up, Tensor)
        assert isinstance(weights.down, Tensor)
        experts += weights.gate_up.nbytes + weights.down.nbytes
    assert experts == 2 * 4 * 3 * 64 * 32 * 4  # layers, experts, maps, inputs, outputs, bytes
    assert checked.weight_bytes is not None
    assert checked.weight_bytes > experts


def test_a_faulty_tensor_of_an_expert_is_named(qwen3_moe: Path, tmp_path: Path) -> None:
    folder = tmp_path / "quantized"
    write_quantized(CASES["w4a16-group"], qwen3_moe, folder)
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.experts.3.down_proj.weight_shape"
    tensors[name] = torch.tensor([5, 5])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        TensorError, match=r"experts\.3\.down_proj\.weight_packed is .* instead of \[5, 1\]"
    ):
        loaded(folder)


def test_gpt_oss_in_mxfp4_is_that_of_transformers(tmp_path: Path) -> None:
    """Both implementations; the native one has equal bits of every expert's weights."""
    model = GptOssForCausalLM(GptOssConfig(**SIZES, num_local_experts=4))
    model.save_pretrained(tmp_path)
    draw_mxfp4_experts(tmp_path)
    expected = GptOssForCausalLM.from_pretrained(
        tmp_path, quantization_config=Mxfp4Config(dequantize=True), dtype=torch.float32
    )
    assert_equal(loaded(tmp_path), expected.state_dict())
    ours = TransformersModel.load(TransformersConfig.load(tmp_path), device=CPU)
    native = Llama.load(tmp_path, device=CPU, dtype=torch.float32)
    for implementation in (ours, native):
        assert max(worst_differences(expected, implementation).values()) <= TOLERANCE
    theirs, mlp = expected.model.layers[1].mlp.experts, native.layers[1].mlp
    assert isinstance(mlp, SparseMlp)
    gate_up, down = mlp.experts.weights.gate_up, mlp.experts.weights.down
    assert not isinstance(gate_up, Tensor)
    assert not isinstance(down, Tensor)
    assert gate_up.precision == down.precision == MXFP4
    assert torch.equal(down.plain(), theirs.down_proj.mT)
    gates, ups = gate_up.plain().chunk(2, dim=1)
    assert torch.equal(gates, theirs.gate_up_proj.mT[:, ::2])
    assert torch.equal(ups, theirs.gate_up_proj.mT[:, 1::2])
