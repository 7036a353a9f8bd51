"""Tensors that do not fit, and methods that are not supported, are named with the remedy."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specdecode_engine.model.checkpoint.checkpoint import TensorError
from specdecode_engine.model.checkpoint.config_file import ConfigError, ConfigFile
from specdecode_engine.model.checkpoint.quantized.config import read_quantization
from specdecode_engine.model.checkpoint.quantized.store import DequantizingStore, open_checkpoint
from specdecode_engine.model.drafts.eagle_config import Eagle1Config
from specdecode_engine.model.layers.layers import Mlp
from specdecode_engine.model.target.config import LlamaConfig
from specdecode_engine.model.target.families import unsupported_features
from specdecode_engine.model.target.llama import Llama
from specdecode_engine.model.target.transformers_config import TransformersConfig
from specdecode_engine.model.transformers.model import TransformersModel
from specdecode_engine.startup.model_check import CheckOptions, check_pair
from tests.engine.checkpoints import Checkpoints
from tests.engine.model.checkpoint.quantized.writers import CASES, write_quantized

CPU = torch.device("cpu")
PREFIX = "model.layers.1.mlp.down_proj"
Change = Callable[[dict[str, Tensor]], object]


def lose(end: str) -> Change:
    return lambda tensors: tensors.pop(f"{PREFIX}.{end}")


def reshape(end: str, *shape: int) -> Change:
    def change(tensors: dict[str, Tensor]) -> None:
        old = tensors[f"{PREFIX}.{end}"]
        tensors[f"{PREFIX}.{end}"] = torch.zeros(shape, dtype=old.dtype)

    return change


def fill(end: str, place: tuple[int, ...], value: float) -> Change:
    return lambda tensors: tensors[f"{PREFIX}.{end}"].__setitem__(place, value)


NAN, INFINITY = float("nan"), float("inf")
FAULTS: list[tuple[str, Change, str]] = [
    ("int8-channel", lose("weight"), rf"lacks {PREFIX}\.weight"),
    ("int8-channel", lose("weight_scale"), rf"lacks {PREFIX}\.weight_scale"),
    (
        "int8-channel",
        reshape("weight_scale", 64, 2),
        rf"{PREFIX}\.weight_scale is \[64, 2\] instead of \[64, 1\] or \[64\]",
    ),
    ("int8-channel", reshape("weight", 63, 96), rf"{PREFIX}\.weight_scale is \[64, 1\] instead"),
    ("w4a16-asymmetric", lose("weight_shape"), rf"lacks {PREFIX}\.weight_shape"),
    (
        "w4a16-asymmetric",
        reshape("weight_zero_point", 9, 3),
        r"weight_zero_point is \[9, 3\] instead of \[8, 3\]",
    ),
    (
        "w4a16-asymmetric",
        reshape("weight_shape", 2),
        rf"{PREFIX}\.weight_packed is \[64, 12\] instead of \[0, 0\]",
    ),
    ("awq", lose("scales"), rf"lacks {PREFIX}\.scales"),
    ("awq", reshape("qzeros", 3, 9), rf"{PREFIX}\.qzeros is \[3, 9\] instead of \[3, 8\]"),
    ("awq", reshape("qweight", 95, 8), r"is \[95, 8\], but the inputs .* in groups of 32"),
    ("gptq", lose("qzeros"), rf"lacks {PREFIX}\.qzeros"),
    ("gptq", reshape("g_idx", 95), rf"{PREFIX}\.g_idx is \[95\] instead of \[96\]"),
    ("gptq", reshape("qweight", 12, 60), r"is \[12, 60\], but words of 4 bits .* of 8 outputs"),
    ("fp8-deepseek", lose("weight_scale_inv"), rf"lacks {PREFIX}\.weight_scale_inv"),
    (
        "fp8-deepseek",
        reshape("weight_scale_inv", 2, 2),
        r"weight_scale_inv is \[2, 2\] instead of \[2, 3\]",
    ),
    ("fp8-deepseek", fill("weight_scale_inv", (1, 2), NAN), r"scale_inv\[1, 2\] is nan, and a"),
    ("fp8-channel", fill("weight_scale", (9, 0), INFINITY), r"weight_scale\[9, 0\] is inf, and a"),
    ("awq", fill("scales", (2, 5), NAN), rf"{PREFIX}\.scales\[2, 5\] is nan, and a scale must"),
    ("gptq", fill("scales", (2, 5), INFINITY), rf"{PREFIX}\.scales\[2, 5\] is inf, and a scale"),
    ("fp8-tensor", reshape("weight", 64), r"weight is \[64\], but a weight in float8 is a matrix"),
]


@pytest.mark.parametrize(("name", "change", "message"), FAULTS)
def test_a_faulty_tensor_is_named(
    name: str, change: Change, message: str, checkpoints: Checkpoints, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    write_quantized(CASES[name], checkpoints.target, folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(TensorError, match=message):
        Llama.load(folder, device=CPU)
    assert check_pair(folder, None, CheckOptions()).reasons
    with pytest.raises(TensorError, match=message):
        TransformersModel.load(TransformersConfig.load(folder), device=CPU)


def test_a_type_that_the_method_does_not_explain_is_named(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    write_quantized(CASES["awq"], checkpoints.target, tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    tensors["lm_head.weight"] = tensors["lm_head.weight"].to(torch.float8_e4m3fn)
    save_file(tensors, file)
    with pytest.raises(TensorError, match=r"lm_head\.weight is of type .*awq does not explain"):
        Llama.load(tmp_path / "model", device=CPU)


def test_tensors_of_activations_are_left_out(checkpoints: Checkpoints, tmp_path: Path) -> None:
    write_quantized(CASES["fp8-tensor"], checkpoints.target, tmp_path / "model")
    store = open_checkpoint(tmp_path / "model")
    assert isinstance(store, DequantizingStore)
    assert f"{PREFIX}.input_scale" in store.unused
    assert not {*store.unused} & {*store.tensors}
    Llama.load(tmp_path / "model", device=CPU)


def test_biases_of_zeros_that_gptq_adds_are_harmless(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    """AutoGPTQ stores a bias for every map; one with values would have to be added."""
    folder = tmp_path / "model"
    write_quantized(CASES["gptq"], checkpoints.target, folder)
    tensors = load_file(folder / "model.safetensors")
    names = [name for name in tensors if name.endswith(".scales")]
    biases = {
        name.replace(".scales", ".bias"): torch.zeros(tensors[name].shape[1]) for name in names
    }
    save_file({**tensors, **biases}, folder / "model.safetensors")
    assert check_pair(folder, None, CheckOptions()).is_served
    Llama.load(folder, device=CPU)
    TransformersModel.load(TransformersConfig.load(folder), device=CPU)
    biases[f"{PREFIX}.bias"][3] = 1
    save_file({**tensors, **biases}, folder / "model.safetensors")
    mlp = Llama.load(folder, device=CPU).layers[1].mlp
    assert isinstance(mlp, Mlp)
    assert mlp.down.bias is not None
    assert mlp.down.bias.tolist() == biases[f"{PREFIX}.bias"].tolist()
    with pytest.raises(TensorError, match=rf"holds, unused, {PREFIX}\.bias;"):
        TransformersModel.load(TransformersConfig.load(folder), device=CPU)


def keys(config: dict[str, Any]) -> ConfigFile:
    return ConfigFile(Path("config.json"), {"quantization_config": config})


def compressed(**changes: Any) -> dict[str, Any]:
    """A config of compressed-tensors with keys changed, those of the weights by `weights`."""
    group: dict[str, Any] = {
        "targets": ["Linear"],
        "weights": {"num_bits": 4, "strategy": "group", "group_size": 128},
        "input_activations": None,
    }
    group["weights"] |= changes.pop("weights", {})
    group |= changes.pop("group", {})
    plain = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    return {**plain, "config_groups": {"group_0": group}, **changes}


def auto_round(**changes: Any) -> dict[str, Any]:
    """A config of AutoRound with keys changed."""
    return {"quant_method": "auto-round", "bits": 4, "group_size": 128, **changes}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"bits": 4}, "quantization_config.quant_method is missing; supported: compressed-tensors"),
    ({"quant_method": "bitsandbytes"}, "quant_method is 'bitsandbytes'; supported"),
    ({"quant_method": "gguf"}, "quant_method is 'gguf'; supported"),
    ({"quant_method": "awq", "bits": 3, "group_size": 128}, "bits is 3; supported: 4"),
    (
        {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemv"},
        "version is 'gemv'; supported: gemm",
    ),
    ({"quant_method": "awq", "bits": 4}, "group_size is missing"),
    ({"quant_method": "gptq", "bits": 5, "group_size": 128}, "bits is 5; supported: 2, 3, 4, 8"),
    (
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "marlin"},
        "checkpoint_format is 'marlin'; supported: gptq, gptq_v2",
    ),
    (
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"+:x": {"bits": 7}}},
        r"dynamic\.\+:x\.bits is 7; supported: 2, 3, 4, 8",
    ),
    (
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"+:(": {"bits": 8}}},
        r"dynamic\.\+:\( is .*not a regular expression",
    ),
    (auto_round(packing_format="auto_round:llm_compressor"), "packing_format is .*supported: auto"),
    (auto_round(data_type="mx_fp"), "data_type is 'mx_fp'; supported: int"),
    (auto_round(act_bits=8), "act_bits is 8; weights alone may be integers"),
    (auto_round(bits=5), "bits is 5; supported: 2, 3, 4, 8"),
    (auto_round(extra_config={"lm_head": {"bits": 7}}), r"extra_config\.lm_head\.bits is 7"),
    (auto_round(extra_config={"mlp.*(": {"bits": 8}}), "the key is not a regular expression"),
    (
        auto_round(packing_format="auto_round:auto_awq", extra_config={"lm_head": {"bits": 8}}),
        "bits is 4; supported in auto_round:auto_awq: 4 everywhere",
    ),
    ({"quant_method": "fp8", "weight_block_size": [128]}, "two positive integers"),
    (compressed(format="marlin-24"), "format is 'marlin-24'; supported: int-quantized"),
    (compressed(weights={"num_bits": 9}), r"weights\.num_bits is 9; supported: 1 to 8"),
    (compressed(weights={"strategy": "token"}), "strategy is 'token'; supported: tensor"),
    (compressed(group={"targets": "Linear"}), "targets is 'Linear'; it must be a list"),
    (compressed(group={"targets": ["re:("]}), r"re:\( is not a regular expression"),
    (compressed(sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config is"),
    (compressed(transform_config={"config_groups": {"R1": {}}}), "transform_config is"),
]


@pytest.mark.parametrize(("config", "message"), REFUSED)
def test_what_is_not_supported_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_quantization(keys(config))


def test_an_unsupported_method_is_among_what_a_model_needs() -> None:
    file = keys({"quant_method": "bitsandbytes"})
    assert [
        feature
        for feature in unsupported_features(file)
        if feature.startswith(
            "quantized weights (quantization_config.quant_method is 'bitsandbytes'; supported: "
        )
    ]


def test_what_is_not_applied_is_listed() -> None:
    config = compressed(
        group={"input_activations": {"num_bits": 8}}, kv_cache_scheme={"num_bits": 8}
    )
    quantization = read_quantization(keys(config))
    assert quantization is not None
    assert quantization.unused == (
        "activations (input_activations)",
        "the KV cache (kv_cache_scheme)",
    )
    assert (
        quantization.description == "compressed-tensors (pack-quantized of 4 bits, groups of 128)"
    )


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"quantization_config": {}},
        {"quantization_config": compressed(group={"weights": None})},
        {"text_config": {"hidden_size": 3}},
    ],
)
def test_plain_weights_have_no_quantization(config: dict[str, Any]) -> None:
    assert read_quantization(ConfigFile(Path("config.json"), config)) is None


def test_the_quantization_of_a_text_model_is_found() -> None:
    file = ConfigFile(Path("config.json"), {"text_config": {"quantization_config": compressed()}})
    assert read_quantization(file) is not None


def test_a_quantized_eagle_head_is_refused(checkpoints: Checkpoints, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoints.eagle, tmp_path / "eagle"))
    head = json.loads((folder / "config.json").read_text())
    head["quantization_config"] = compressed()
    (folder / "config.json").write_text(json.dumps(head))
    with pytest.raises(ConfigError, match=r"quantization_config is .*convert the head's weights"):
        Eagle1Config.load(folder, LlamaConfig.load(checkpoints.target))


@pytest.mark.parametrize(
    ("form", "group", "inputs", "dtype"),
    [
        ("nvfp4-pack-quantized", 16, 24, torch.uint8),
        ("mxfp4-pack-quantized", 32, 48, torch.uint8),
        ("mxfp8-quantized", 32, 48, torch.float8_e4m3fn),
        ("float-quantized", 128, 192, torch.float8_e4m3fn),
    ],
)
def test_inputs_that_do_not_come_in_whole_groups_are_refused(
    form: str, group: int, inputs: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    config = compressed(format=form, weights={"num_bits": 8, "type": "float", "group_size": group})
    end, stored = ("weight", inputs) if dtype != torch.uint8 else ("weight_packed", inputs // 2)
    tensors = {f"up.{end}": torch.zeros(8, stored, dtype=torch.uint8).view(dtype)}
    tensors["up.weight_scale"] = torch.zeros(8, 2)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))
    message = rf"up\.{end} is .*, but {inputs} inputs do not come in groups of {group}"
    with pytest.raises(TensorError, match=message):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(("byte", "message"), [(0, None), (255, r"weight_scales\[3, 1\] is nan")])
def test_of_exponents_255_alone_is_not_a_number(
    byte: int, message: str | None, tmp_path: Path
) -> None:
    """In gpt-oss's layout; 0 is 2^-127."""
    config = {"quantization_config": {"quant_method": "mxfp4"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    scales = torch.zeros(4, 2, dtype=torch.uint8)
    scales[3, 1] = byte
    blocks = torch.full((4, 2, 16), 0x22, dtype=torch.uint8)
    tensors = {"up.weight_blocks": blocks, "up.weight_scales": scales}
    save_file(tensors, tmp_path / "model.safetensors")
    store = open_checkpoint(tmp_path)
    assert isinstance(store, DequantizingStore)
    if message is None:
        store.check_scales()
        assert store.get("up.weight").eq(2.0**-127).all()
        return
    with pytest.raises(TensorError, match=message):
        store.check_scales()
    with pytest.raises(TensorError, match=message):
        store.get("up.weight")
