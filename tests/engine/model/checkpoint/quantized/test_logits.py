"""Quantized checkpoints have the logits of transformers on the weights that they stand for."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from specdecode_engine.model.checkpoint.quantized import weight
from specdecode_engine.model.checkpoint.quantized.store import open_checkpoint
from specdecode_engine.model.checkpoint.record_tensors import tensor_bytes
from specdecode_engine.startup.build import build_core
from specdecode_engine.startup.model_check import CheckOptions, check_pair
from specdecode_kernels import INT4, INT8, MXFP4, NVFP4, Precision
from tests.engine.checkpoints import Checkpoints
from tests.engine.model.checkpoint.quantized.logits import (
    our_logits,
    plain_logits,
    transformers_logits,
)
from tests.engine.model.checkpoint.quantized.writers import CASES, Stored, write_quantized
from tests.engine.test_tensors_from_memory import answer, boot

CPU = torch.device("cpu")
IDS = torch.tensor([3, 41, 7, 96, 12, 8, 60])
TOLERANCE = 2e-5
WRITTEN_BY_LIBRARY = [
    name for name, case in CASES.items() if "config_groups" in case.config and name != "nvfp4"
]
"""Without NVFP4, whose weights the library rounds to bfloat16, whatever the type of the model."""

LAYERS = 3
ZEROS = Precision("int4", 32, has_zeros=True)
INT8_ZEROS = Precision("int8", has_zeros=True)
FLOAT8_BY_OUTPUT, FLOAT8_BY_GROUP = Precision("float8_e4m3fn"), Precision("float8_e4m3fn", 32)
KEPT = {
    "int8-channel": INT8,
    "w8a16-group": Precision("int8", 32),
    "fp8-channel": FLOAT8_BY_OUTPUT,
    "fp8-block": FLOAT8_BY_GROUP,
    "fp8-deepseek": FLOAT8_BY_GROUP,
    "fp8-tensor": FLOAT8_BY_OUTPUT,
    "modelopt-fp8": FLOAT8_BY_OUTPUT,
    "w4a16-group": INT4,
    "w4a16-asymmetric": ZEROS,
    "awq": ZEROS,
    "gptq": ZEROS,
    "gptq-v2-shuffled": ZEROS,
    "gptq-8-bits-per-channel": INT8_ZEROS,
    "int8-tensor-asymmetric": INT8_ZEROS,
    "w8a16-tensor-asymmetric": INT8_ZEROS,
    "w8a16-channel-asymmetric": INT8_ZEROS,
    "mxfp4": MXFP4,
    "nvfp4": NVFP4,
}
"""The formats whose weights kernels take as they are stored."""

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
def test_check_names_the_format_and_counts_dequantized_weights(name: str, written: Written) -> None:
    folder, plain = written[name]
    options = CheckOptions(torch.bfloat16, quantization="none")
    checked = check_pair(folder, None, options).target
    assert checked.reason is None
    assert checked.has_tensors
    assert not checked.keeps_quantized
    assert checked.quantization == CASES[name].description
    assert checked.parameters == sum(tensor.numel() for tensor in plain.values())
    assert checked.weight_bytes == 2 * checked.parameters


@pytest.mark.parametrize("name", CASES)
def test_weights_that_kernels_take_are_those_of_the_format(name: str, written: Written) -> None:
    folder, plain = written[name]
    stored = open_checkpoint(folder).tensors
    kept = {one: stored[one].quantized for one in plain if stored[one].quantized is not None}
    assert len(kept) == (7 * LAYERS if name in KEPT else 0)
    found = set[Precision]()
    for one, quantized in kept.items():
        assert quantized is not None
        read = quantized.read()
        assert read is not None
        found.add(read.precision)
        assert quantized.precision in (KEPT[name], replace(KEPT[name], has_zeros=True))
        tolerance = 2**-22 if name == "nvfp4" else 0  # the inverse of its global scale is rounded
        torch.testing.assert_close(read.plain(), plain[one], rtol=tolerance, atol=0)
    if name in KEPT:  # zero points that are all 0 are left out
        assert KEPT[name] in found
        assert found <= {KEPT[name], replace(KEPT[name], has_zeros=False)}


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_engine_keeps_the_weights(name: str, dtype: str, written: Written) -> None:
    """And saves the memory that `check` reports; the logits are tested above."""
    folder, _ = written[name]
    core, dequantized = (
        build_core(boot(folder, None, dtype=dtype, quantization=quantization))
        for quantization in ("auto", "none")
    )
    maps = core.facts["linear_weights"]
    assert isinstance(maps, dict)
    assert maps[KEPT[name].format] == 4 * LAYERS
    kept, plain = (
        check_pair(folder, None, CheckOptions(getattr(torch, dtype), quantization=one)).target
        for one in ("auto", "none")
    )
    assert kept.keeps_quantized
    assert kept.weight_bytes is not None
    assert plain.weight_bytes is not None
    saved = tensor_bytes(dequantized.context.target) - tensor_bytes(core.context.target)
    assert saved == pytest.approx(plain.weight_bytes - kept.weight_bytes, rel=0.05)


def test_weights_are_dequantized_on_request_or_rounded_to_fewer_bits(written: Written) -> None:
    for name, quantization, expected in (
        ("awq", "none", {"float32"}),
        ("awq", "int8", {"int4", "int8"}),  # the head
        ("int8-channel", "int8", {"int8"}),
        ("int8-channel", "int4", {"int4", "int8"}),
        ("fp8-deepseek", "none", {"float32"}),
        ("fp8-deepseek", "auto", {"float32", "float8_e4m3fn"}),
        ("fp8-deepseek", "int8", {"float8_e4m3fn", "int8"}),
        ("fp8-tensor", "int4", {"int4", "int8"}),
        ("gptq-v2-shuffled", "auto", {"float32", "int4"}),
        ("gptq", "auto", {"float32", "int4"}),
        ("w4a16-asymmetric", "auto", {"float32", "int4"}),
    ):
        core = build_core(boot(written[name][0], None, quantization=quantization))
        maps = core.facts["linear_weights"]
        assert isinstance(maps, dict)
        assert set(maps) == expected, (name, quantization)
        options = CheckOptions(torch.float32, quantization=quantization)
        checked = check_pair(written[name][0], None, options).target
        is_kept = quantization == "int8" and name in KEPT
        assert checked.keeps_quantized == (is_kept or (name in KEPT and quantization == "auto"))
        text = answer(core)
        drafting = build_core(boot(written[name][0], written[name][0], quantization=quantization))
        assert answer(drafting) == text


def test_maps_of_one_input_in_different_orders_are_dequantized(
    written: Written, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With one log line; maps with an order of their own stay."""
    folder = tmp_path / "quantized"
    shutil.copytree(written["gptq-v2-shuffled"][0], folder)
    tensors = load_file(folder / "model.safetensors")
    for layer in range(LAYERS):
        tensors[f"model.layers.{layer}.self_attn.k_proj.g_idx"] = torch.arange(64).int() % 2
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    core = build_core(boot(folder, None))
    assert core.facts["linear_weights"] == {"float32": LAYERS + 1, "int4": 3 * LAYERS}
    notes = [one for one in caplog.messages if "cannot be kept as stored" in one]
    assert len(notes) == 1
    assert "model.layers.0.self_attn.k_proj.weight" in notes[0]


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


@pytest.mark.parametrize("name", ["w4a16-group", "int8-channel", "fp8-channel", "modelopt-fp8"])
def test_a_quantized_head_is_kept_as_well(
    name: str, checkpoints: Checkpoints, texts: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "quantized"
    plain = write_quantized(CASES[name], checkpoints.target, folder, ("_proj", "lm_head"))
    stored = open_checkpoint(folder).tensors["lm_head.weight"]
    assert stored.quantized is not None
    logits = our_logits(folder, "native", texts, IDS)
    expected = plain_logits(folder, plain, IDS)
    torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=TOLERANCE)
    maps = build_core(boot(folder, None)).facts["linear_weights"]
    assert maps == {KEPT[name].format: 4 * LAYERS + 1}
