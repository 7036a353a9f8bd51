"""What is understood of a draft over the target's keys and values, and what is refused by name."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from checks.lossless.assistant import write_assistant
from specdecode_engine.model.checkpoint.config_file import CheckpointError, DraftMismatch
from specdecode_engine.model.drafts.frozen import ORDERING, FrozenHead
from specdecode_engine.model.drafts.frozen_config import FrozenConfig
from specdecode_engine.model.target.config import LlamaConfig
from specdecode_engine.model.target.llama import Llama
from specdecode_engine.startup.draft_methods.registry import algorithm_of

CPU = torch.device("cpu")
WINDOW = 5


@pytest.fixture
def target(tmp_path: Path, config: dict[str, object], tensors: Any, write: Any) -> Path:
    """Layers 0 and 2 have a window, layers 1 and 3 see everything."""
    keys = {
        "architectures": ["Qwen3ForCausalLM"],
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    }
    for layer in range(4):
        for part in "qk":
            tensors[f"model.layers.{layer}.self_attn.{part}_norm.weight"] = torch.ones(6)
    folder: Path = write(tmp_path / "target", config | keys, tensors)
    return folder


@pytest.fixture
def draft(target: Path, tmp_path: Path) -> Path:
    return write_assistant(target, tmp_path / "draft")


def read(folder: Path, target: Path) -> FrozenConfig:
    return FrozenConfig.load(folder, LlamaConfig.load(target))


def change(folder: Path, text: Mapping[str, object], **keys: object) -> None:
    file = folder / "config.json"
    found = json.loads(file.read_text())
    file.write_text(json.dumps({**found, **keys, "text_config": {**found["text_config"], **text}}))


def test_layers_read_the_last_layer_of_their_type(target: Path, draft: Path) -> None:
    config = read(draft, target)
    assert [layer.owner for layer in config.layers] == [2, 3]
    assert [layer.shape.sliding_window for layer in config.layers] == [WINDOW - 1, None]
    assert [rope.kind for rope in config.ropes] == ["default", "proportional"]
    assert (config.recurrent_width, config.aux_spec.final, config.keeps_kv) == (12, True, False)
    assert config.facts == {"frozen_kv": {"target_layers": [2, 3], "scored_tokens": 16}}
    assert algorithm_of(draft) == "FROZEN_KV_MTP"


def test_sizes_are_those_of_all_layers_or_of_one(target: Path, draft: Path) -> None:
    """transformers 5.23 writes the sizes that differ by layer; published files by type."""
    by_type = read(draft, target)
    change(draft, {"head_dim": 6, "global_head_dim": None, "per_layer_config": {"1": {}}})
    assert read(draft, target) == by_type
    change(draft, {"per_layer_config": {"1": {"head_dim": 8}}})
    with pytest.raises(DraftMismatch, match=r"per_layer_config\.1\.head_dim is 8; layer 3 of the"):
        read(draft, target)


@pytest.mark.parametrize(
    ("text", "keys", "message"),
    [
        ({}, {"backbone_hidden_size": 24}, "backbone_hidden_size is 24; the target's is 12"),
        ({"vocab_size": 30}, {}, r"text_config\.vocab_size is 30; the target's is 31"),
        ({"head_dim": 8}, {}, "head_dim is 8; layer 2 of the target, which layer 0 reads, has 6"),
        ({"global_head_dim": 8}, {}, "global_head_dim is 8; layer 3 of the target"),
        ({"num_key_value_heads": 3}, {}, "num_key_value_heads is 3; layer 2 of the target"),
        ({"num_attention_heads": 3}, {}, "num_attention_heads is 3; .* must divide it"),
        ({"sliding_window": 9}, {}, "sliding_window is 9; layer 2 of the target has 5"),
    ],
)
def test_a_draft_of_another_target_is_refused(
    target: Path, draft: Path, text: dict[str, Any], keys: dict[str, Any], message: str
) -> None:
    change(draft, text, **keys)
    with pytest.raises(DraftMismatch, match=message):
        read(draft, target)


def test_a_type_of_layers_that_the_target_lacks_is_refused(
    target: Path, draft: Path, tmp_path: Path, config: dict[str, object], tensors: Any, write: Any
) -> None:
    other = write(tmp_path / "other", config, tensors)
    with pytest.raises(DraftMismatch, match="the target has no layer of type sliding_attention"):
        read(draft, other)


@pytest.mark.parametrize(
    ("text", "keys", "message"),
    [
        ({}, {"architectures": ["LlamaForCausalLM"]}, "architectures is .*supported: Gemma4Assis"),
        ({}, {"num_centroids": 7}, "num_centroids is 7; it must divide the 31 tokens"),
        ({}, {"centroid_intermediate_top_k": 32}, "top_k is 32; there are 31 centroids"),
        ({"hidden_size_per_layer_input": 8}, {}, "hidden_size_per_layer_input is 8; embeddings of"),
        ({"hidden_size_per_layer_input": None}, {}, "hidden_size_per_layer_input is 256"),
        ({"enable_moe_block": True}, {}, "enable_moe_block is True; experts"),
        ({"use_double_wide_mlp": True}, {}, "use_double_wide_mlp is True"),
        ({"num_kv_shared_layers": 1}, {}, "num_kv_shared_layers is 1; all 2 layers must share"),
        ({"layer_types": ["chunked_attention"] * 2}, {}, "layer_types is .* it must name"),
        ({"rope_parameters": {"full_attention": {}}}, {}, "it must have sliding_attention"),
        ({"hidden_activation": "silu"}, {}, "only gelu_pytorch_tanh is supported"),
    ],
)
def test_what_a_draft_cannot_have_is_refused_by_its_key(
    target: Path, draft: Path, text: dict[str, Any], keys: dict[str, Any], message: str
) -> None:
    change(draft, text, **keys)
    with pytest.raises(CheckpointError, match=message):
        read(draft, target)


@pytest.mark.parametrize("fault", ["twice", "of floats"])
def test_an_ordering_without_every_token_is_refused(target: Path, draft: Path, fault: str) -> None:
    file = draft / "model.safetensors"
    tensors = load_file(file)
    ordering = tensors[ORDERING]
    ordering[1] = ordering[0]
    tensors[ORDERING] = ordering if fault == "twice" else torch.arange(31.0)
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=f"{ORDERING} does not have every token once"):
        FrozenHead.load(draft, Llama.load(target, device=CPU))


def test_a_head_of_its_own_scores_if_it_is_not_tied(target: Path, draft: Path) -> None:
    file = draft / "model.safetensors"
    tensors = load_file(file)
    own = torch.randn(31, 12)
    change(draft, {}, use_ordered_embeddings=False, tie_word_embeddings=False)
    kept = {name: one for name, one in tensors.items() if "masked_embedding" not in name}
    save_file({**kept, "lm_head.weight": own}, file)
    head = FrozenHead.load(draft, Llama.load(target, device=CPU))
    assert torch.equal(head.head.plain_weight(), own)
    save_file(kept, file)
    with pytest.raises(CheckpointError, match=r"lacks lm_head\.weight"):
        FrozenHead.load(draft, Llama.load(target, device=CPU))
