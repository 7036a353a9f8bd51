"""Checkpoints that modelopt wrote have the weights that it dequantizes from its own files.

`modelopt/write.py` made them, in an environment of its own.
"""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdecode_engine.model.checkpoint.quantized.modelopt.declaration import FILE
from specdecode_engine.model.checkpoint.quantized.store import open_checkpoint
from specdecode_engine.startup.build import build_core
from specdecode_engine.startup.model_check import CheckOptions, check_pair
from specdecode_kernels import MXFP4, NVFP4, Precision
from tests.engine.model.checkpoint.quantized.logits import (
    our_logits,
    plain_logits,
    plain_weights,
)
from tests.engine.test_tensors_from_memory import boot

HERE = Path(__file__).parent / "modelopt"
FLOAT8 = Precision("float8_e4m3fn")
INT4 = Precision("int4", 32)
CASES: dict[str, tuple[str, tuple[Precision, ...], int]] = {
    "fp8": ("FP8", (FLOAT8,), 6),
    "fp8-channel": ("FP8_PER_CHANNEL_PER_TOKEN", (FLOAT8,), 7),
    "fp8-blocks": ("FP8_PB_WO, blocks of 128 x 128", (Precision("float8_e4m3fn", 128),), 7),
    "nvfp4": ("NVFP4, groups of 16", (NVFP4,), 3),
    "mxfp4": ("MXFP4, groups of 32", (MXFP4,), 7),
    "mxfp8": ("MXFP8, groups of 32", (Precision("float8_e4m3fn", 32),), 7),
    "w4a16-awq": ("W4A16_AWQ, groups of 32", (INT4,), 5),
    "w4a8-awq": ("W4A8_AWQ, groups of 32", (INT4,), 5),
    "mixed": ("FP8; NVFP4, groups of 16", (FLOAT8, NVFP4), 7),
}
"""What `check` reports, the forms in which weights are kept, and how many of seven are."""
IDS = torch.tensor([3, 31, 7, 12, 8, 20, 30])
TOLERANCE = 2e-5
LAYER = "model.layers.0"


@pytest.mark.parametrize("name", CASES)
def test_weights_are_those_that_modelopt_dequantizes(name: str) -> None:
    plain = plain_weights(HERE / name)
    expected = load_file(HERE / name / "dequantized.safetensors")
    assert expected
    zero = f"{LAYER}.self_attn.k_proj.weight"
    if name in ("fp8", "mixed"):  # stored as NaN with a scale of 0
        assert expected[zero].isnan().all()
        expected[zero] = torch.zeros(expected[zero].shape)
    for module, weight in expected.items():
        assert weight.dtype == torch.float32
        assert torch.equal(plain[module], weight), module


@pytest.mark.parametrize("name", CASES)
def test_weights_that_kernels_take_are_kept(name: str) -> None:
    _, precisions, count = CASES[name]
    plain, store = plain_weights(HERE / name), open_checkpoint(HERE / name)
    kept = {key: one.quantized for key, one in store.tensors.items() if one.quantized is not None}
    assert len(kept) == count
    for module, quantized in kept.items():
        assert quantized is not None
        read = quantized.read()
        assert read is not None
        assert quantized.precision in precisions
        assert read.precision.format == quantized.precision.format
        assert torch.equal(read.plain(), plain[module]), module


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_the_dequantized_weights(name: str, texts: Any) -> None:
    folder = HERE / name
    expected = plain_logits(folder, plain_weights(folder), IDS)
    for implementation in ("native", "transformers"):
        logits = our_logits(folder, implementation, texts, IDS)
        torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("name", CASES)
def test_check_names_the_algorithms(name: str) -> None:
    checked = check_pair(HERE / name, None, CheckOptions(torch.bfloat16)).target
    assert checked.reason is None
    assert checked.quantization == f"modelopt ({CASES[name][0]})"


def test_a_zero_weight_stored_as_nan_is_kept_as_zeros() -> None:
    name = f"{LAYER}.self_attn.k_proj.weight"
    stored = load_file(HERE / "fp8" / "model.safetensors")
    assert stored[name].float().isnan().all()
    assert stored[f"{name}_scale"] == 0
    assert plain_weights(HERE / "fp8")[name].eq(0).all()


def test_a_part_of_a_weight_is_read_at_any_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank reads some rows or columns; rows of AWQ lie in pairs."""
    monkeypatch.setattr("specdecode_engine.model.checkpoint.quantized.weight.CHUNK_ELEMENTS", 70)
    for case in CASES:
        store, plain = open_checkpoint(HERE / case), plain_weights(HERE / case)
        for name in (f"{LAYER}.mlp.down_proj.weight", f"{LAYER}.self_attn.q_proj.weight"):
            rows, columns = plain[name].shape
            part = (slice(5, rows - 2), slice(columns // 2, columns))
            read = torch.empty(plain[name][part].shape)
            store.read(name, read, part)
            assert torch.equal(read, plain[name][part]), (case, name)


def copied(case: str, folder: Path) -> Path:
    shutil.copytree(HERE / case, folder, dirs_exist_ok=True)
    return folder


def rewrite(file: Path, **changes: Any) -> None:
    """Change keys of the quantization section of a JSON file; None removes one."""
    keys = json.loads(file.read_text())
    section = keys["quantization_config" if file.name == "config.json" else "quantization"]
    section.update(changes)
    for key in [key for key, value in changes.items() if value is None]:
        del section[key]
    file.write_text(json.dumps(keys))


@pytest.mark.parametrize("case", ["nvfp4", "w4a16-awq", "mixed", "fp8-blocks"])
def test_either_file_alone_is_read(case: str, tmp_path: Path) -> None:
    """Older checkpoints have no `quantization_config`; groups of AWQ are only in the other file."""
    expected = plain_weights(HERE / case)
    folder = copied(case, tmp_path)
    keys = json.loads((folder / "config.json").read_text())
    section = keys.pop("quantization_config")
    (folder / "config.json").write_text(json.dumps(keys))
    checked = check_pair(folder, None, CheckOptions(torch.bfloat16)).target
    assert checked.quantization == f"modelopt ({CASES[case][0]})"
    plain = plain_weights(folder)
    for name, weight in expected.items():
        assert torch.equal(plain[name], weight), name
    nested = json.loads((folder / FILE).read_text())
    (folder / FILE).unlink()
    groups = {"group_size": 32} if case == "w4a16-awq" else {}
    sections = (
        {**section, **groups, "quant_method": "modelopt_fp4"},
        {**nested, "quant_method": "ModelOpt"},
        nested,  # has no quant_method, but the producer
    )
    for one in sections:
        (folder / "config.json").write_text(json.dumps({**keys, "quantization_config": one}))
        plain = plain_weights(folder)
        for name, weight in expected.items():
            assert torch.equal(plain[name], weight), name


def test_an_engine_starts_and_logs_what_it_does_not_apply(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        core = build_core(boot(copied("fp8", tmp_path), None))
    assert core.facts["quantization"] == "modelopt (FP8)"
    maps = core.facts["linear_weights"]
    assert isinstance(maps, dict)
    assert maps["float8_e4m3fn"] == 3  # q, k and v together, o, down
    assert "8 scales and zero points of activations and of the KV cache" in caplog.text


def test_minus_zero_and_a_scale_of_zero_are_valid(tmp_path: Path) -> None:
    folder = copied("nvfp4", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    name = f"{LAYER}.mlp.down_proj.weight"
    tensors[name][0] = 0x88
    tensors[f"{name}_scale"].view(torch.uint8)[1] = 0
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert check_pair(folder, None, CheckOptions(torch.bfloat16)).target.reason is None
    plain = plain_weights(folder)[name]
    assert plain[:2].eq(0).all()
    assert plain[2:].ne(0).any()


def test_the_smallest_exponent_is_valid(tmp_path: Path) -> None:
    folder = copied("mxfp4", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    name = f"{LAYER}.mlp.down_proj.weight"
    tensors[f"{name}_scale"][0] = 0
    tensors[name][0] = 0x22
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert plain_weights(folder)[name][0].eq(2.0**-127).all()
