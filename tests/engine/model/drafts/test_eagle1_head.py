"""An EAGLE-1 head shares what it repeats of its target; one that does not fit is refused."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specdecode_engine.model.checkpoint.config_file import CheckpointError
from specdecode_engine.model.drafts.eagle import Eagle1Head
from specdecode_engine.model.target.config import AuxHiddenStates
from specdecode_engine.model.target.llama import Llama

Tensors = dict[str, Tensor]
Config = dict[str, object]
Load = Callable[[Config, Tensors], Eagle1Head]


@pytest.fixture
def head_config(config: Config) -> Config:
    """A config.json as the authors publish it; its context is far too short."""
    return {**config, "num_hidden_layers": 1, "max_position_embeddings": 4}


@pytest.fixture
def target(tmp_path: Path, config: Config, tensors: Tensors, write: Any) -> Llama:
    """The tiny Llama."""
    return Llama.load(write(tmp_path / "t", config, tensors), device=torch.device("cpu"))


@pytest.fixture
def load(tmp_path: Path, target: Llama, write: Any) -> Load:
    """Write a head and load it for the target."""
    return lambda config, tensors: Eagle1Head.load(write(tmp_path / "h", config, tensors), target)


def test_it_shares_the_target_s_embedding_head_and_length(
    load: Load, target: Llama, head_config: Config, eagle1_tensors: Tensors
) -> None:
    head = load(head_config, eagle1_tensors)
    assert head.embedding is target.embedding
    assert head.head.weight is target.head.weight
    assert head.angles.shape[1] == target.context_length == 64
    assert (head.config.aux_spec, head.draft_to_target) == (AuxHiddenStates(final=True), None)


def test_a_copy_of_the_target_s_embedding_is_shared_and_another_one_is_used(
    load: Load, target: Llama, head_config: Config, eagle1_tensors: Tensors
) -> None:
    assert isinstance(target.head.weight, torch.Tensor)
    copies = {"embed_tokens.weight": target.embedding, "lm_head.weight": target.head.weight}
    head = load(head_config, {**eagle1_tensors, **{n: t.clone() for n, t in copies.items()}})
    assert head.embedding is target.embedding
    assert head.head.weight is target.head.weight
    others = {name: torch.randn(31, 12) for name in copies}
    head = load(head_config, {**eagle1_tensors, **others})
    torch.testing.assert_close(head.embedding, others["embed_tokens.weight"], rtol=0, atol=0)
    torch.testing.assert_close(head.head.weight, others["lm_head.weight"], rtol=0, atol=0)


REFUSED_CONFIGS: list[tuple[Config, str]] = [
    ({"architectures": ["LlamaForCausalLMEagle3"]}, "an EAGLE head has LlamaForCausalLM or"),
    ({"vocab_size": 32}, "vocab_size is 32; the target's is 31"),
    ({"hidden_size": 24}, "hidden_size is 24; the target's is 12"),
    ({"bias": False}, "holds, unused, fc.bias"),
    ({"bias": 1}, "bias is 1; it must be true or false"),
    ({"qkv_bias": True}, "lacks layers.0.self_attn.k_proj.bias"),
    ({"num_hidden_layers": 2}, "lacks layers.1.input_layernorm.weight"),
    ({"sliding_window": 8}, "sliding_window is 8; this architecture has no sliding windows"),
    ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; supported: silu, swish, gelu_pytorch_tanh"),
]


@pytest.mark.parametrize(("keys", "message"), REFUSED_CONFIGS, ids=lambda value: str(value)[:40])
def test_a_config_is_refused(
    load: Load, head_config: Config, eagle1_tensors: Tensors, keys: Config, message: str
) -> None:
    with pytest.raises(CheckpointError, match=re.escape(message)):
        load({**head_config, **keys}, eagle1_tensors)


@pytest.mark.parametrize("name", ["fc.weight", "fc.bias", "layers.0.mlp.up_proj.weight"])
def test_a_missing_tensor_is_named(
    load: Load, head_config: Config, eagle1_tensors: Tensors, name: str
) -> None:
    del eagle1_tensors[name]
    with pytest.raises(CheckpointError, match=f"lacks {re.escape(name)}"):
        load(head_config, eagle1_tensors)


@pytest.mark.parametrize(
    "name", ["norm.weight", "layers.0.input_layernorm.weight", "model.layers.0.mlp.up_proj.weight"]
)
def test_an_unknown_tensor_is_named(
    load: Load, head_config: Config, eagle1_tensors: Tensors, name: str
) -> None:
    eagle1_tensors[name] = torch.randn(12)
    with pytest.raises(CheckpointError, match=f"holds, unused, {re.escape(name)}"):
        load(head_config, eagle1_tensors)
