"""Quantized checkpoints have the logits of transformers on the weights that they stand for."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from specdecode_engine.model.quantized import weight
from specdecode_engine.model.quantized.store import open_checkpoint
from specdecode_engine.startup.build import build_core
from specdecode_engine.startup.model_check import CheckOptions, check_pair
from tests.engine.checkpoints import Checkpoints
from tests.engine.model.quantized.logits import our_logits, plain_logits, transformers_logits
from tests.engine.model.quantized.writers import CASES, Stored, write_quantized
from tests.engine.test_tensors_from_memory import answer, boot

CPU = torch.device("cpu")
IDS = torch.tensor([3, 41, 7, 96, 12, 8, 60])
TOLERANCE = 2e-5
WRITTEN_BY_LIBRARY = [name for name, case in CASES.items() if "config_groups" in case.config]

Written = dict[str, tuple[Path, Stored]]


@pytest.fixture(scope="module")
def written(checkpoints: Checkpoints, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """A checkpoint of every format, and its plain tensors."""
    torch.manual_seed(0)
    place = tmp_path_factory.mktemp("quantized")
    return {
        name: (place / name, write_quantized(case, checkpoints.target, place / name))
        for name, case in CASES.items()
    }


@pytest.mark.parametrize("chunk", [weight.CHUNK_ELEMENTS, 1000])
@pytest.mark.parametrize("name", CASES)
def test_weights_are_those_of_the_format(
    name: str, chunk: int, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a whole, and in chunks of a few rows."""
    monkeypatch.setattr(weight, "CHUNK_ELEMENTS", chunk)
    folder, plain = written[name]
    store = open_checkpoint(folder)
    assert {one: stored.shape for one, stored in store.tensors.items()} == {
        one: tuple(tensor.shape) for one, tensor in plain.items()
    }
    for one, expected in plain.items():
        read = torch.empty_like(expected)
        store.read(one, read)
        assert torch.equal(read, expected), one


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_the_dequantized_weights(
    name: str, written: Written, texts: Any
) -> None:
    folder, plain = written[name]
    expected = plain_logits(folder, plain, IDS)
    for implementation in ("native", "transformers"):
        logits = our_logits(folder, implementation, texts, IDS)
        torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("name", WRITTEN_BY_LIBRARY)
def test_logits_are_those_of_the_checkpoint_in_transformers(
    name: str, written: Written, texts: Any
) -> None:
    folder, _ = written[name]
    config = LlamaConfig.from_pretrained(folder)
    config.quantization_config["dequantize"] = True
    model = LlamaForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32)
    logits = our_logits(folder, "native", texts, IDS)
    expected = transformers_logits(model, IDS)
    torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("name", CASES)
def test_check_names_the_format_and_counts_plain_weights(name: str, written: Written) -> None:
    folder, plain = written[name]
    checked = check_pair(folder, None, CheckOptions(torch.bfloat16)).target
    assert checked.reason is None
    assert checked.has_tensors
    assert checked.quantization == CASES[name].description
    assert checked.parameters == sum(tensor.numel() for tensor in plain.values())
    assert checked.weight_bytes == 2 * checked.parameters


def test_an_engine_names_the_formats_and_answers_as_on_plain_weights(
    written: Written, checkpoints: Checkpoints, tmp_path: Path
) -> None:
    (target, plain), (draft, _) = written["awq"], written["fp8-deepseek"]
    core = build_core(boot(target, draft))
    assert core.facts["quantization"] == CASES["awq"].description
    assert core.facts["draft_quantization"] == CASES["fp8-deepseek"].description
    shutil.copytree(checkpoints.target, tmp_path / "plain")
    save_file(plain, tmp_path / "plain" / "model.safetensors", metadata={"format": "pt"})
    on_plain = build_core(boot(tmp_path / "plain", checkpoints.draft))
    assert "quantization" not in on_plain.facts
    assert answer(core) == answer(on_plain)
