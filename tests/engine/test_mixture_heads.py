"""Text with EAGLE-3 heads in the layouts that are published for Qwen3-MoE and gpt-oss."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from checks.lossless.families import make_family
from checks.lossless.poison import build_poisoned
from specdecode_api.boot import EngineBoot
from specdecode_engine.engine import EngineCore
from tests.engine.checkpoints import HIDDEN, VOCAB, Checkpoints
from tests.engine.whole_engine import requests_of, run

MAX_TOKENS = 16
WINDOW = 4
FAMILIES = ("qwen3_moe", "gpt_oss")


def write_specforge31(eagle3: Path, into: Path) -> Path:
    """A norm for each layer's hidden states, and a recurrent output that is normed."""
    tensors = load_file(eagle3 / "model.safetensors")
    tensors |= {f"fc_norm.{number}.weight": torch.rand(HIDDEN) + 0.5 for number in range(3)}
    keys = json.loads((eagle3 / "config.json").read_text())
    return _write(into, {**keys, "fc_norm": True, "norm_output": True}, tensors)


def write_speculators(eagle3: Path, into: Path) -> Path:
    """Names by layer, an own embedding, one norm of all hidden states, and ids of boundaries."""
    tensors = {
        name.replace("midlayer.", "layers.0."): tensor
        for name, tensor in load_file(eagle3 / "model.safetensors").items()
    }
    tensors["embed_tokens.weight"] = 0.2 * torch.randn(VOCAB, HIDDEN)
    tensors["input_norm.weight"] = torch.rand(3 * HIDDEN) + 0.5
    layer = json.loads((eagle3 / "config.json").read_text())
    del layer["architectures"], layer["eagle_config"]
    keys = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": layer.pop("draft_vocab_size"),
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
        "norm_before_fc": True,
        "norm_before_residual": True,
        "target_hidden_size": None,
        "transformer_layer_config": {**layer, "model_type": "llama"},
    }
    return _write(into, keys, tensors)


def _write(into: Path, keys: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Path:
    into.mkdir()
    (into / "config.json").write_text(json.dumps(keys))
    save_file(dict(tensors), into / "model.safetensors")
    return into


@pytest.fixture(scope="module")
def heads(checkpoints: Checkpoints, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("heads")
    torch.manual_seed(8)
    return {
        "specforge 3.1": write_specforge31(checkpoints.eagle3, folder / "specforge"),
        "speculators": write_speculators(checkpoints.eagle3, folder / "speculators"),
    }


def make_core(target: Path, page_size: int, head: Path | None = None, topk: int = 1) -> EngineCore:
    speculation: dict[str, object] = {}
    if head is not None:
        speculation = {"algorithm": "EAGLE3", "draft_path": str(head), "topk": topk, "num_steps": 4}
    document = {
        "model": {"path": str(target), "dtype": "float32"},
        "speculation": speculation,
        "memory": {"page_size": page_size},
        "scheduling": {"max_running_requests": 3, "chunked_prefill_tokens": 10},
        "device": "cpu",
    }
    return build_poisoned(EngineBoot.model_validate(document))


@pytest.mark.parametrize("family", FAMILIES)
def test_text_with_published_heads_equals_plain_text(
    family: str, checkpoints: Checkpoints, heads: dict[str, Path], tmp_path: Path
) -> None:
    target = make_family(family, checkpoints.target, tmp_path / "target", window=WINDOW)
    requests = requests_of(VOCAB, 4, MAX_TOKENS)
    wanted = run(make_core(target, 16), requests)
    for head, topk, page_size in (("specforge 3.1", 1, 16), ("speculators", 4, 1)):
        core = make_core(target, page_size, heads[head], topk)
        assert run(core, requests, preempted_at_step=6) == wanted, head
        assert core.counters.decode.drafted_tokens > 0
