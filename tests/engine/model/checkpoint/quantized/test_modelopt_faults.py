"""Faulty checkpoints of modelopt are refused with file, tensor or key, value and remedy."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specdecode_engine.model.checkpoint.checkpoint import TensorError
from specdecode_engine.model.checkpoint.config_file import CheckpointError
from specdecode_engine.model.checkpoint.quantized.modelopt.declaration import FILE
from specdecode_engine.model.checkpoint.quantized.modelopt.format import ALGORITHMS
from specdecode_engine.startup.build import build_core
from specdecode_engine.startup.model_check import CheckOptions, check_pair
from tests.engine.test_tensors_from_memory import boot

HERE = Path(__file__).parent / "modelopt"
MODULE = "model.layers.0.mlp.down_proj"
Change = Callable[[dict[str, Tensor]], object]


def lose(end: str) -> Change:
    return lambda tensors: tensors.pop(f"{MODULE}.{end}")


def put(end: str, value: Tensor) -> Change:
    return lambda tensors: tensors.update({f"{MODULE}.{end}": value})


def fill(end: str, place: Any, value: float) -> Change:
    """Change one number, of bytes the byte."""

    def change(tensors: dict[str, Tensor]) -> None:
        stored = tensors[f"{MODULE}.{end}"]
        numbers = stored.view(torch.uint8) if stored.dtype.itemsize == 1 else stored
        numbers[place] = value

    return change


def floats(*shape: int) -> Tensor:
    return torch.ones(shape)


def codes(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.uint8)


def float8(*shape: int) -> Tensor:
    return torch.ones(shape).to(torch.float8_e4m3fn)


NAN = float("nan")
EMBEDDING = "model.embed_tokens"
FAULTS: list[tuple[str, Change, str]] = [
    ("fp8", lose("weight_scale"), r"lacks .*down_proj\.weight_scale; the files are incomplete"),
    ("nvfp4", lose("weight_scale"), r"lacks .*down_proj\.weight_scale;"),
    ("nvfp4", lose("weight_scale_2"), r"lacks .*down_proj\.weight_scale_2"),
    ("mxfp4", lose("weight_scale"), r"lacks .*down_proj\.weight_scale"),
    ("fp8", fill("weight_scale", (), NAN), r"down_proj\.weight_scale is nan, .* finite; download"),
    ("fp8-channel", fill("weight_scale", 3, NAN), r"down_proj\.weight_scale\[3\] is nan"),
    ("fp8-channel", fill("weight_scale", 3, float("inf")), r"down_proj\.weight_scale\[3\] is inf"),
    ("fp8-blocks", fill("weight_scale", (1, 0, 0, 0), NAN), r"weight_scale\[1, 0, 0, 0\] is nan"),
    ("nvfp4", fill("weight_scale", (3, 1), 0xFF), r"down_proj\.weight_scale\[3, 1\] is nan"),
    ("nvfp4", fill("weight_scale_2", (), NAN), r"down_proj\.weight_scale_2 is nan"),
    ("mxfp4", fill("weight_scale", (3, 1), 255), r"down_proj\.weight_scale\[3, 1\] is nan"),
    ("w4a16-awq", fill("pre_quant_scale", 5, NAN), r"down_proj\.pre_quant_scale\[5\] is nan"),
    ("fp8", put("weight_scale", floats(32)), r"weight_scale is \[32\] instead of \[1, 1\]"),
    ("fp8-channel", put("weight_scale", floats(31)), r"is \[31\] instead of \[32, 1\] or \[32\]"),
    (
        "fp8-blocks",
        put("weight_scale", floats(1, 1, 2, 1)),
        r"is \[1, 1, 2, 1\] instead of \[2, 1, 1, 1\] or \[2, 1\]",
    ),
    ("nvfp4", put("weight_scale", float8(32, 5)), r"is \[32, 5\] instead of \[32, 4\]"),
    ("nvfp4", put("weight_scale_2", floats(2)), r"is \[2\] instead of \[\] or \[1\]"),
    ("nvfp4", put("weight_scale", floats(32, 4)), r"float32 instead of torch.float8_e4m3fn"),
    ("mxfp4", put("weight_scale", float8(32, 2)), r"float8_e4m3fn instead of torch.uint8 or"),
    ("mxfp8", put("weight_scale", codes(32, 1)), r"is \[32, 1\] instead of \[32, 2\]"),
    ("w4a16-awq", put("weight_scale", floats(32, 1)), r"is \[32, 1\] instead of \[32, 2\]"),
    ("w4a16-awq", put("pre_quant_scale", floats(63)), r"pre_quant_scale is \[63\] instead of \[64"),
    ("nvfp4", put("weight", codes(32, 28)), r"\[32, 28\], but 56 inputs .* groups of 16 \(NVFP4"),
    ("mxfp4", put("weight", codes(32, 24)), r"\[32, 24\], but 48 inputs .* groups of 32 \(MXFP4"),
    ("mxfp8", put("weight", float8(32, 48)), r"\[32, 48\], but 48 inputs .* groups of 32 \(MXFP8"),
    ("w4a8-awq", put("weight", codes(16, 48)), r"48 inputs .* groups of 32 \(W4A8_AWQ"),
    ("nvfp4", put("weight", codes(32)), r"weight is \[32\], but a quantized weight is a matrix"),
    (
        "nvfp4",
        put("weight", float8(32, 32)),
        r"weight is of type .*float8_e4m3fn instead of .*uint8",
    ),
    (
        "fp8",
        put("weight", codes(32, 64)),
        r"weight is of type torch.uint8 instead of .*float8_e4m3fn",
    ),
    (
        "fp8",
        lambda tensors: tensors.update({"model.layers.0.mlp.gate_proj.weight": float8(64, 32)}),
        r"gate_proj\.weight is quantized, but excluded .* by 'model\.layers\.0\.mlp\.gate_proj'",
    ),
    (
        "nvfp4",
        lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.weight": codes(32, 16)}),
        r"q_proj\.weight is quantized, but excluded .* by 'model\.layers\.0\.self_attn\*'",
    ),
    (
        "mixed",
        lambda tensors: tensors.update({"lm_head.weight": codes(32, 16)}),
        r"lm_head\.weight is quantized, but quantized_layers has no algorithm for it",
    ),
]


def copied(case: str, folder: Path) -> Path:
    shutil.copytree(HERE / case, folder, dirs_exist_ok=True)
    return folder


def assert_refused(folder: Path, error: type[CheckpointError], message: str) -> None:
    """By `check`, and at start natively and through transformers."""
    checked = check_pair(folder, None, CheckOptions(torch.bfloat16)).target
    with pytest.raises(error, match=message) as natively:
        build_core(boot(folder, None, implementation="native"))
    with pytest.raises(error, match=message):
        build_core(boot(folder, None, implementation="transformers"))
    assert str(folder) in str(natively.value)
    assert checked.reason is not None
    assert re.search(message, checked.reason)


@pytest.mark.parametrize(("case", "change", "message"), FAULTS)
def test_a_faulty_tensor_is_named(case: str, change: Change, message: str, tmp_path: Path) -> None:
    folder = copied(case, tmp_path)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert_refused(folder, TensorError, message)


CONFIG = "config.json"
SECTION = "quantization_config"


def rewrite(file: Path, **changes: Any) -> None:
    """Change keys of the quantization section of a file; None removes one."""
    keys = json.loads(file.read_text())
    section = keys[SECTION if file.name == CONFIG else "quantization"]
    section.update(changes)
    for key in [key for key, value in changes.items() if value is None]:
        del section[key]
    file.write_text(json.dumps(keys))


LAYERS = {"model.layers.0.mlp.up_proj": {"quant_algo": "FP8"}}
KEYS: list[tuple[str, str, dict[str, Any], str]] = [
    (
        "fp8",
        CONFIG,
        {"quant_algo": "FP8_FAST"},
        "quant_algo is 'FP8_FAST'; supported: FP8, FP8_PER",
    ),
    ("fp8", CONFIG, {"quant_algo": "NVFP4_AWQ"}, "quant_algo is 'NVFP4_AWQ'; supported: FP8"),
    ("fp8", CONFIG, {"quant_algo": None}, "quantization_config.quant_algo is missing; supported"),
    ("fp8", CONFIG, {"rotation": 1}, "quantization_config.rotation is 1; the key is not known"),
    ("fp8", FILE, {"rotation": 1}, f"{FILE}: quantization.rotation is 1; the key is not known"),
    ("fp8", FILE, {"quant_algo": 8}, f"{FILE}: quantization.quant_algo is 8; supported"),
    ("fp8", CONFIG, {"ignore": "lm_head"}, "ignore is 'lm_head'; it must be a list of names"),
    ("fp8", CONFIG, {"kv_cache_scheme": "FP9"}, "kv_cache_scheme is 'FP9'; supported: FP8, INT8"),
    ("nvfp4", CONFIG, {"group_size": 32}, "group_size is 32; NVFP4 has groups of 16"),
    ("w4a16-awq", FILE, {"group_size": 0}, "group_size is 0; it must be a positive integer"),
    ("w4a16-awq", FILE, {"has_zero_point": True}, "has_zero_point is True; zero points are not"),
    (
        "mixed",
        CONFIG,
        {"quantized_layers": {}},
        "quantized_layers is {}; MIXED_PRECISION needs the",
    ),
    (
        "mixed",
        CONFIG,
        {"quantized_layers": {"a.b": {"quant_algo": "W8A16"}}},
        r"quantized_layers\.a\.b\.quant_algo is 'W8A16'; supported: FP8",
    ),
    (
        "mixed",
        CONFIG,
        {"quantized_layers": {"a.b": {"quant_algo": "FP8", "lora_rank": 4}}},
        r"quantized_layers\.a\.b\.lora_rank is 4; the key is not known",
    ),
    # The two files contradict each other.
    (
        "fp8",
        FILE,
        {"quant_algo": "NVFP4"},
        f"{FILE}: quantization.quant_algo is 'NVFP4'; config.json has 'FP8'; take both files from",
    ),
    (
        "mixed",
        FILE,
        {"quantized_layers": LAYERS},
        r"quantized_layers\.model\.layers\.0\.mlp\.down_proj is missing, but 'NVFP4' in config",
    ),
    (
        "nvfp4",
        FILE,
        {"exclude_modules": ["lm_head", "model.embed_tokens"]},
        r"exclude_modules differs .*: config.json has 'model\.layers\.0\.self_attn\*'",
    ),
    (
        "nvfp4",
        CONFIG,
        {"ignore": None},
        r"exclude_modules differs from .*ignore of config.json: hf_quant_config.json has",
    ),
    (
        "fp8",
        FILE,
        {"kv_cache_quant_algo": None},
        "kv_cache_quant_algo is None, but 'FP8' in config.json; take both files",
    ),
    (
        "nvfp4",
        FILE,
        {"kv_cache_quant_algo": "NVFP4"},
        "kv_cache_quant_algo is 'NVFP4', but None in config.json; take both files",
    ),
    (
        "fp8",
        CONFIG,
        {"quant_method": "fp8"},
        f"{FILE}: quantization.quant_algo is 'FP8'; quant_method of config.json is 'fp8'",
    ),
]


@pytest.mark.parametrize(("case", "file", "changes", "message"), KEYS)
def test_a_faulty_key_is_named(
    case: str, file: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = copied(case, tmp_path)
    rewrite(folder / file, **changes)
    assert_refused(folder, CheckpointError, message)


def test_other_keys_may_differ_between_the_files(tmp_path: Path) -> None:
    folder = copied("w4a16-awq", tmp_path)
    rewrite(folder / FILE, pre_quant_scale=False)
    rewrite(folder / CONFIG, ignore=["model.embed_tokens", "lm_head"], quant_algo="w4a16_awq")
    assert check_pair(folder, None, CheckOptions(torch.bfloat16)).target.reason is None


def test_a_damaged_second_file_is_named(tmp_path: Path) -> None:
    folder = copied("fp8", tmp_path)
    (folder / FILE).write_text("[]")
    assert_refused(folder, CheckpointError, f"{FILE}: not a JSON object; download it again")


def test_a_quantized_embedding_is_refused(tmp_path: Path) -> None:
    folder = copied("fp8", tmp_path)
    for file, key in ((CONFIG, "ignore"), (FILE, "exclude_modules")):
        rewrite(folder / file, **{key: ["lm_head", "model.layers.0.mlp.gate_proj"]})
    tensors = load_file(folder / "model.safetensors")
    tensors[f"{EMBEDDING}.weight"] = float8(32, 32)
    tensors[f"{EMBEDDING}.weight_scale"] = floats()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    message = r"embed_tokens\.weight is quantized \(stored as torch.float8_e4m3fn\).*; quantize the"
    assert_refused(folder, TensorError, message)


def test_every_algorithm_has_a_written_checkpoint() -> None:
    written = {
        json.loads((folder / CONFIG).read_text())[SECTION]["quant_algo"].upper()
        for folder in HERE.iterdir()
        if folder.is_dir() and (folder / CONFIG).exists()
    }
    assert {*ALGORITHMS} - written == {"W4A16_NVFP4"}  # the tensors of NVFP4
