"""Every tensor of every family that is missing, renamed, reshaped or of integers is named."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specdecode_engine.model.checkpoint.config_file import CheckpointError
from specdecode_engine.model.target.config import LlamaConfig
from specdecode_engine.model.target.llama import Llama, llama_shapes

CPU = torch.device("cpu")
FAMILIES: dict[str, dict[str, object]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "attention_bias": True, "mlp_bias": True},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": True},
    "mistral": {"architectures": ["MistralForCausalLM"], "sliding_window": None},
    "qwen3_moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 7,
        "decoder_sparse_step": 2,
    },
    "gemma3": {"architectures": ["Gemma3ForCausalLM"], "torch_dtype": "bfloat16"},
    "gpt_oss": {
        "architectures": ["GptOssForCausalLM"],
        "num_local_experts": 3,
        "num_experts_per_tok": 2,
    },
}
Tensors = dict[str, Tensor]


def deleted(tensors: Tensors, name: str) -> tuple[Tensors, str]:
    rest = {other: tensor for other, tensor in tensors.items() if other != name}
    return rest, f"lacks {name};"


def renamed(tensors: Tensors, name: str) -> tuple[Tensors, str]:
    rest, _ = deleted(tensors, name)
    return {**rest, f"{name}_old": tensors[name]}, f"lacks {name};"


def added(tensors: Tensors, name: str) -> tuple[Tensors, str]:
    return {**tensors, f"{name}_old": tensors[name].clone()}, f"holds, unused, {name}_old;"


def reshaped(tensors: Tensors, name: str) -> tuple[Tensors, str]:
    shape = list(tensors[name].shape)
    taller = [shape[0] + 1, *shape[1:]]
    return {**tensors, name: torch.zeros(taller)}, f"{name} is {taller} instead of {shape};"


def flattened(tensors: Tensors, name: str) -> tuple[Tensors, str]:
    shape, flat = list(tensors[name].shape), tensors[name][None]
    return {**tensors, name: flat}, f"{name} is {list(flat.shape)} instead of {shape};"


def rounded(tensors: Tensors, name: str) -> tuple[Tensors, str]:
    return {**tensors, name: tensors[name].long()}, f"holds integers in {name};"


@pytest.fixture(params=FAMILIES)
def keys(request: pytest.FixtureRequest, config: dict[str, object]) -> dict[str, object]:
    return {**config, "num_hidden_layers": 2, **FAMILIES[request.param]}


@pytest.mark.parametrize("change", [deleted, renamed, added, reshaped, flattened, rounded])
def test_a_fault_of_any_tensor_is_an_error_that_names_it(
    tmp_path: Path,
    keys: dict[str, object],
    write: Any,
    change: Callable[[Tensors, str], tuple[Tensors, str]],
) -> None:
    required, _ = llama_shapes(LlamaConfig.load(write(tmp_path, keys, {})))
    tensors = {name: torch.ones(shape) for name, shape in required.items()}
    Llama.load(write(tmp_path, keys, tensors), device=CPU)
    for name in tensors:
        faulty, message = change(tensors, name)
        with pytest.raises(CheckpointError) as caught:
            Llama.load(write(tmp_path, keys, faulty), device=CPU)
        assert message in str(caught.value)
        assert str(tmp_path) in str(caught.value)
