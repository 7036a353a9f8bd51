"""Backends and kernels are chosen for what the attention of all layers computes, from configs."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from specdecode_api.boot import EngineBoot, ModelImplementation
from specdecode_engine.model.implementations import read_config
from specdecode_engine.startup.attention import AttentionHeads, layer_params
from specdecode_engine.startup.config import resolve
from specdecode_kernels import Choice
from tests.shadow_cuda.active import shadow_cuda
from tests.shadow_cuda.flashinfer_module import installed_flashinfer

CONFIGS = Path(__file__).parents[2] / "configs"
CPU, GPU = torch.device("cpu"), torch.device("cuda")


def make_folder(folder: Path, name: str, **changed: Any) -> Path:
    """A folder with a published config.json of fewer layers, and nothing else."""
    keys = json.loads((CONFIGS / f"{name}.json").read_text())
    (folder / "config.json").write_text(json.dumps(keys | changed))
    return folder


def choose(**model: str) -> Iterable[Choice]:
    return resolve(EngineBoot.model_validate({"model": model})).kernels.values()


@pytest.fixture
def gpt_oss(tmp_path: Path) -> Path:
    types = ["sliding_attention", "full_attention"]
    return make_folder(tmp_path, "gpt-oss-20b", num_hidden_layers=2, layer_types=types)


@pytest.fixture
def gpu() -> Iterator[None]:
    with shadow_cuda() as device, installed_flashinfer(device):
        yield


@pytest.mark.parametrize("implementation", get_args(ModelImplementation))
def test_sinks_are_known_before_weights_are_read(
    gpt_oss: Path, implementation: ModelImplementation
) -> None:
    layers = layer_params(read_config(gpt_oss, implementation))
    assert [params.sliding_window for params in layers.values()] == [128, None]
    for params in layers.values():
        assert params.sinks is not None
        assert params.sinks.is_meta
        assert params.sinks.shape == (64,)


@pytest.mark.parametrize("implementation", ["native", "transformers"])
def test_layers_that_flashinfer_cannot_compute_get_triton_at_start(
    gpt_oss: Path, implementation: str, gpu: None
) -> None:
    (choice,) = choose(path=str(gpt_oss), implementation=implementation, dtype="bfloat16")
    assert choice.backend.attention == "triton"
    assert choice.reason.endswith("flashinfer's paged kernels take no sinks")


def test_latents_get_triton_at_start(tmp_path: Path, gpu: None) -> None:
    folder = make_folder(tmp_path, "glm-4.7-flash", num_hidden_layers=2)
    (choice,) = choose(path=str(folder))
    assert choice.backend.attention == "triton"
    assert choice.reason.endswith("not torch.bfloat16 heads of 576")


def test_windows_alone_stay_with_flashinfer(tmp_path: Path, gpu: None) -> None:
    folder = make_folder(tmp_path, "mistral-7b-v0.1")
    (choice,) = resolve(
        EngineBoot.model_validate({"model": {"path": str(folder)}})
    ).kernels.values()
    assert choice.backend.attention == "flashinfer"


def test_models_of_like_heads_share_a_backend_whatever_their_windows(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("mistral-7b-v0.1", "llama-3.3-70b")]
    for folder in folders:
        folder.mkdir()
    window, without = (read_config(make_folder(each, each.name)) for each in folders)
    heads = [AttentionHeads.of(config, GPU) for config in (window, without)]
    assert heads[0] == heads[1]
    assert [one.layers[0].sliding_window for one in heads] == [4096, None]
