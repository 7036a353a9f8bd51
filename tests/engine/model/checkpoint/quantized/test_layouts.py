"""Layouts that no tiny Llama has: experts, numbers of four bits, blocks that are cut off."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import save_file
from torch import Tensor
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from specdecode_engine.model.checkpoint.checkpoint import Checkpoint, TensorError
from specdecode_engine.model.checkpoint.config_file import ConfigFile
from specdecode_engine.model.checkpoint.quantized import weight
from specdecode_engine.model.checkpoint.quantized.config import read_quantization
from specdecode_engine.model.checkpoint.quantized.packing import exponent_scales, unpack
from specdecode_engine.model.checkpoint.quantized.store import DequantizingStore
from specdecode_kernels import Precision
from tests.engine.model.checkpoint.quantized.writers import by_gptq


def store(folder: Path, config: dict[str, Any], **tensors: Tensor) -> DequantizingStore:
    """Write tensors, with two underscores for a dot, and open them."""
    named = {name.replace("__", "."): tensor.contiguous() for name, tensor in tensors.items()}
    save_file(named, folder / "model.safetensors")
    keys = {"quantization_config": config}
    quantization = read_quantization(ConfigFile(folder / "config.json", keys))
    assert quantization is not None
    return DequantizingStore.of(Checkpoint.open_quantized(folder), quantization)


def read(tensors: DequantizingStore, name: str, dtype: torch.dtype = torch.float32) -> Tensor:
    into = torch.empty(tensors.tensors[name].shape, dtype=dtype)
    tensors.read(name, into)
    return into


def random_bytes(*shape: int, low: int = 0, high: int = 256) -> Tensor:
    return torch.randint(low, high, shape, dtype=torch.uint8)


@pytest.mark.parametrize("chunk", [weight.CHUNK_ELEMENTS, 100])
def test_experts_in_mxfp4_are_those_of_transformers(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight, "CHUNK_ELEMENTS", chunk)
    blocks, scales = random_bytes(3, 10, 2, 16), random_bytes(3, 10, 2, low=118, high=130)
    tensors = store(
        tmp_path,
        {"quant_method": "mxfp4"},
        experts__gate_up_proj_blocks=blocks,
        experts__gate_up_proj_scales=scales,
        experts__gate_up_proj_bias=torch.ones(3, 10),
    )
    for dtype in (torch.float32, torch.bfloat16):
        expected = convert_moe_packed_tensors(blocks, scales, dtype=dtype)
        assert expected.shape == (3, 64, 10)
        assert torch.equal(read(tensors, "experts.gate_up_proj", dtype), expected)
    assert read(tensors, "experts.gate_up_proj_bias").eq(1).all()


def test_a_matrix_in_mxfp4_keeps_its_order(tmp_path: Path) -> None:
    blocks, scales = random_bytes(10, 2, 16), random_bytes(10, 2, low=118, high=130)
    tensors = store(
        tmp_path, {"quant_method": "mxfp4"}, up__weight_blocks=blocks, up__weight_scales=scales
    )
    expected = convert_moe_packed_tensors(blocks[None], scales[None], dtype=torch.float32)[0].T
    assert torch.equal(read(tensors, "up.weight"), expected)


def test_faults_of_mxfp4_are_named(tmp_path: Path) -> None:
    config = {"quant_method": "mxfp4"}
    with pytest.raises(TensorError, match=r"lacks up\.weight_scales"):
        store(tmp_path, config, up__weight_blocks=random_bytes(10, 2, 16))
    with pytest.raises(TensorError, match=r"up\.weight_scales is \[10, 3\] instead of \[10, 2\]"):
        store(
            tmp_path,
            config,
            up__weight_blocks=random_bytes(10, 2, 16),
            up__weight_scales=random_bytes(10, 3),
        )
    with pytest.raises(TensorError, match=r"up\.weight_blocks is \[10, 2, 8\], but blocks are"):
        store(tmp_path, config, up__weight_blocks=random_bytes(10, 2, 8))


def test_exponents_are_exact_powers_of_two() -> None:
    stored = torch.arange(256, dtype=torch.uint8)
    scales = exponent_scales(stored)
    assert scales[:255].tolist() == [2.0**power for power in range(-127, 128)]
    assert scales[255].isnan()
    assert torch.equal(exponent_scales(stored[1:255].view(torch.float8_e8m0fnu)), scales[1:255])


@pytest.mark.parametrize(
    ("form", "bits", "group"),
    [
        ("mxfp4-pack-quantized", 4, 32),
        ("mxfp6-pack-quantized", 6, 32),
        ("mxfp8-quantized", 8, 32),
        ("nvfp4-pack-quantized", 4, 16),
    ],
)
def test_floats_of_few_bits_are_those_of_compressed_tensors(
    form: str, bits: int, group: int, tmp_path: Path
) -> None:
    has_exponents = group == 32
    weights = QuantizationArgs(
        num_bits=bits,
        type="float",
        strategy="group" if has_exponents else "tensor_group",
        group_size=group,
        scale_dtype=torch.uint8 if has_exponents else None,
    )
    scheme = QuantizationScheme(targets=["Linear"], weights=weights, format=form)
    local = {"weight": fp8(6, 64)} if bits == 8 else {"weight_packed": random_bytes(6, bits * 8)}
    if has_exponents:
        local["weight_scale"] = random_bytes(6, 2, low=118, high=130)
    else:
        local["weight_scale"] = (torch.rand(6, 4) * 40 + 1).to(torch.float8_e4m3fn)
        local["weight_global_scale"] = torch.tensor([37.5])
    compressor = BaseCompressor.get_value_from_registry(form)
    expected = compressor.decompress(dict(local), scheme)["weight"].float()
    config = {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": scheme.model_dump(mode="json")},
    }
    tensors = store(tmp_path, config, **{f"up__{end}": part for end, part in local.items()})
    torch.testing.assert_close(read(tensors, "up.weight"), expected, rtol=4e-3, atol=0)


def fp8(*shape: int) -> Tensor:
    return torch.randn(shape).to(torch.float8_e4m3fn)


def test_blocks_that_are_cut_off_have_a_scale(tmp_path: Path) -> None:
    config = {"quant_method": "fp8", "weight_block_size": [4, 8]}
    stored, scale = fp8(10, 20), torch.rand(3, 3) + 0.5
    tensors = store(tmp_path, config, up__weight=stored, up__weight_scale_inv=scale)
    full = scale.repeat_interleave(4, 0).repeat_interleave(8, 1)[:10, :20]
    assert torch.equal(read(tensors, "up.weight"), stored.float() * full)


def test_experts_in_float8_are_those_of_transformers(tmp_path: Path) -> None:
    config = {"quant_method": "fp8", "weight_block_size": [4, 8], "scale_fmt": "ue8m0"}
    stored, scale = fp8(3, 8, 16), random_bytes(3, 2, 2, low=120, high=130)
    tensors = store(tmp_path, config, gate_up_proj=stored, gate_up_proj_scale_inv=scale)
    expected = Fp8Dequantize(None)._dequantize_one(stored, scale, torch.float32)
    assert torch.equal(read(tensors, "gate_up_proj"), expected)


def test_experts_in_float8_are_kept_in_one_tensor(tmp_path: Path) -> None:
    config = {"quant_method": "fp8", "weight_block_size": [32, 32]}
    stored, scale = fp8(3, 70, 96), torch.rand(3, 3, 3) + 0.5
    tensors = store(tmp_path, config, up_proj=stored, up_proj_scale_inv=scale)
    kept = tensors.tensors["up_proj"].quantized
    assert kept is not None
    for part in ((), (slice(1, 3), slice(20, 45), slice(32, 96))):
        quantized = replace(kept, part=part).read()
        assert quantized is not None
        assert torch.equal(quantized.plain(), read(tensors, "up_proj")[part])


def test_experts_in_mxfp4_are_kept_in_one_tensor(tmp_path: Path) -> None:
    blocks, scales = random_bytes(3, 10, 2, 16), random_bytes(3, 10, 2, low=0, high=254)
    tensors = store(tmp_path, {"quant_method": "mxfp4"}, up_blocks=blocks, up_scales=scales)
    kept = tensors.tensors["up"].quantized
    assert kept is not None
    for part in ((), (slice(1, 3), slice(32, 64), slice(4, 7))):
        quantized = replace(kept, part=part).read()
        assert quantized is not None
        assert torch.equal(quantized.plain().mT, read(tensors, "up")[part])
    scales[1, 2, 1] = 255
    tensors = store(tmp_path, {"quant_method": "mxfp4"}, up_blocks=blocks, up_scales=scales)
    kept = tensors.tensors["up"].quantized
    assert kept is not None
    with pytest.raises(TensorError, match=r"up_scales\[1, 2, 1\] is nan"):
        kept.read()


def test_float8_that_kernels_do_not_take_is_dequantized(tmp_path: Path) -> None:
    """Other blocks, float8_e5m2, and NaN, which only the values show."""
    config: dict[str, Any] = {"quant_method": "fp8", "weight_block_size": [32, 32]}
    stored, scale = fp8(64, 96), torch.rand(2, 3) + 0.5

    def kept(config: dict[str, Any], name: str, weight: Tensor, scale: Tensor) -> Any:
        tensors = store(tmp_path, config, **{name: weight, f"{name}_scale_inv": scale})
        return tensors.tensors[name.replace("__", ".")].quantized

    wanted = kept(config, "up__weight", stored, scale)
    assert wanted is not None
    assert wanted.read().precision == Precision("float8_e4m3fn", 32)
    assert kept(config, "up__weight", stored.float().to(torch.float8_e5m2), scale) is None
    other = {"quant_method": "fp8", "weight_block_size": [32, 48]}
    assert kept(other, "up__weight", stored, scale[:, :2]) is None
    stored.view(torch.uint8)[40, 70] = 0xFF
    assert kept(config, "up__weight", stored, scale).read() is None


def test_exponents_are_scales_of_kept_float8(tmp_path: Path) -> None:
    config = {"quant_method": "fp8", "weight_block_size": [32, 32], "scale_fmt": "ue8m0"}
    stored, scale = fp8(40, 96), random_bytes(2, 3, low=120, high=130).view(torch.float8_e8m0fnu)
    tensors = store(tmp_path, config, up__weight=stored, up__weight_scale_inv=scale)
    quantized = tensors.tensors["up.weight"].quantized
    assert quantized is not None
    kept = quantized.read()
    assert kept is not None
    assert torch.equal(kept.plain(), read(tensors, "up.weight"))


def test_the_closest_target_chooses_the_scheme(tmp_path: Path) -> None:
    def group(targets: list[str], form: str, **weights: Any) -> dict[str, Any]:
        return {"targets": targets, "format": form, "weights": weights}

    config = {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision",
        "config_groups": {
            "group_0": group(["Linear"], "int-quantized", num_bits=8, strategy="channel"),
            "group_1": group(
                ["re:.*down_proj$"], "float-quantized", num_bits=8, type="float", strategy="tensor"
            ),
        },
    }
    integers, floats = torch.randint(-128, 128, (6, 4), dtype=torch.int8), fp8(6, 4)
    parts = {
        "up_proj__weight": integers,
        "up_proj__weight_scale": torch.rand(6, 1),
        "down_proj__weight": floats,
        "down_proj__weight_scale": torch.rand(1),
    }
    tensors = store(tmp_path, config, **parts)
    scale, factor = parts["up_proj__weight_scale"], parts["down_proj__weight_scale"]
    assert torch.equal(read(tensors, "up_proj.weight"), integers.float() * scale)
    assert torch.equal(read(tensors, "down_proj.weight"), floats.float() * factor)
    only_down = {**config, "config_groups": {"group_1": config["config_groups"]["group_1"]}}  # type: ignore[index]
    with pytest.raises(TensorError, match="up_proj is quantized, but no target"):
        store(tmp_path, only_down, **parts)


def test_groups_out_of_order_are_those_of_the_index(tmp_path: Path) -> None:
    """compressed-tensors' weight_g_idx; zero points as older versions wrote them."""
    config = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 4, "strategy": "group", "group_size": 8},
            }
        },
    }
    integers = torch.randint(-8, 8, (5, 16))
    words = torch.zeros(5, 2, dtype=torch.int64)
    for column in range(16):
        words[:, column // 8] |= (integers[:, column] + 8) << (4 * (column % 8))
    order, scales = torch.randperm(16) % 2, torch.rand(5, 2)
    zeros = torch.randint(-8, 8, (5, 2), dtype=torch.int8)
    tensors = store(
        tmp_path,
        config,
        up__weight_packed=torch.where(words >= 2**31, words - 2**32, words).int(),
        up__weight_scale=scales,
        up__weight_zero_point=zeros,
        up__weight_shape=torch.tensor([5, 16]),
        up__weight_g_idx=order.int(),
    )
    expected = (integers - zeros[:, order]) * scales[:, order]
    assert torch.equal(read(tensors, "up.weight"), expected)


def shuffled(tmp_path: Path, index: Tensor) -> tuple[DequantizingStore, Tensor]:
    """Store a map with groups of 32 inputs under another index; return its integers, too."""
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}
    parts, _ = by_gptq(4, 32).quantize(torch.randn(16, 64))
    parts["g_idx"] = index.int()
    tensors = store(tmp_path, config, **{f"up__{end}": one for end, one in parts.items()})
    return tensors, unpack(parts["qweight"].T, 4)


def test_inputs_are_kept_in_the_order_of_their_groups(tmp_path: Path) -> None:
    tensors, integers = shuffled(tmp_path, torch.arange(64) % 2)
    quantized = tensors.tensors["up.weight"].quantized
    assert quantized is not None
    assert quantized.is_shuffled
    kept = quantized.read()
    assert kept is not None
    assert kept.order is not None
    assert kept.order.tolist() == [*range(0, 64, 2), *range(1, 64, 2)]
    assert torch.equal(kept.numbers() + 8, integers[:, kept.order])
    assert torch.equal(kept.plain(), read(tensors, "up.weight"))
    assert quantized.read_part((slice(0, 16), slice(0, 32))) is None


def test_groups_of_different_sizes_are_dequantized(tmp_path: Path) -> None:
    tensors, _ = shuffled(tmp_path, torch.tensor([0] * 40 + [1] * 24))
    quantized = tensors.tensors["up.weight"].quantized
    assert quantized is not None
    assert quantized.read() is None
    assert read(tensors, "up.weight").isfinite().all()


@pytest.mark.parametrize("number", [-1, 2])
def test_an_input_of_no_group_is_named(number: int, tmp_path: Path) -> None:
    index = torch.arange(64) % 2
    index[9] = number
    tensors, _ = shuffled(tmp_path, index)
    message = rf"up\.weight: input 9 is in group {number}, and there are 2 groups; take tensors"
    with pytest.raises(TensorError, match=message):
        read(tensors, "up.weight")
    quantized = tensors.tensors["up.weight"].quantized
    assert quantized is not None
    with pytest.raises(TensorError, match=message):
        quantized.read()


def test_an_index_of_compressed_tensors_may_be_unset(tmp_path: Path) -> None:
    config = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 4, "strategy": "group", "group_size": 32},
            }
        },
    }
    parts = {
        "up__weight_packed": torch.arange(40, dtype=torch.int32).view(5, 8) * 77_777_777,
        "up__weight_scale": torch.rand(5, 2),
        "up__weight_shape": torch.tensor([5, 64]),
    }
    plain = read(store(tmp_path, config, **parts), "up.weight")
    unset = store(tmp_path, config, **parts, up__weight_g_idx=torch.full((64,), -1).int())
    assert torch.equal(read(unset, "up.weight"), plain)
    kept = unset.tensors["up.weight"].quantized
    assert kept is not None
    found = kept.read()
    assert found is not None
    assert found.order is None
    assert torch.equal(found.plain(), plain)


def test_the_first_expression_in_the_alphabet_decides(tmp_path: Path) -> None:
    """As in `match_targets` of compressed-tensors, whatever the order of groups."""
    floats = {"num_bits": 8, "type": "float", "strategy": "tensor"}
    wide = {"targets": ["re:.*mlp.*"], "format": "float-quantized", "weights": floats}
    integers = {"num_bits": 8, "strategy": "channel"}
    narrow = {"targets": ["re:.*down_proj"], "format": "int-quantized", "weights": integers}
    config = {"quant_method": "compressed-tensors", "config_groups": {"0": wide, "1": narrow}}
    stored, scale = torch.randint(-128, 128, (6, 4), dtype=torch.int8), torch.rand(6, 1)
    tensors = store(
        tmp_path, config, mlp__down_proj__weight=stored, mlp__down_proj__weight_scale=scale
    )
    assert torch.equal(read(tensors, "mlp.down_proj.weight"), stored.float() * scale)


def test_dynamic_of_gptq_gives_some_modules_other_bits(tmp_path: Path) -> None:
    """GPTQModel quantizes an output head to 8 bits next to layers of 4."""
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq_v2"}
    config["dynamic"] = {"-:.*norm": {}, "lm_head": {"bits": 8, "group_size": -1}, "lm_.*": {}}
    weight = torch.randn(16, 64)
    parts: dict[str, Tensor] = {}
    plain: dict[str, Tensor] = {}
    for name, case in (("lm_head", by_gptq(8, -1, is_v2=True)), ("up", by_gptq(4, 32, is_v2=True))):
        stored, plain[name] = case.quantize(weight)
        parts |= {f"{name}__{end}": one for end, one in stored.items()}
    tensors = store(tmp_path, config, **parts)
    for name, expected in plain.items():
        assert torch.equal(read(tensors, f"{name}.weight"), expected), name


def test_the_first_match_of_dynamic_decides(tmp_path: Path) -> None:
    """In file order; `-:` excludes modules, which must not be stored quantized."""
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq_v2"}
    case = by_gptq(8, 32, is_v2=True)
    stored, plain = case.quantize(torch.randn(16, 64))
    parts = {f"mlp__up__{end}": one for end, one in stored.items()}
    first = {"-:mlp.gate": {}, "+:mlp": {"bits": 8}, r".*\.up": {"bits": 2}, "-:.*": {}}
    tensors = store(tmp_path, {**config, "dynamic": first}, **parts)
    assert torch.equal(read(tensors, "mlp.up.weight"), plain)
    excluded = {r"up": {"bits": 8}, "-:.*up": {}, "mlp": {"bits": 8}}
    with pytest.raises(TensorError, match=r"mlp\.up\.qweight is .*, but `dynamic` excludes"):
        store(tmp_path, {**config, "dynamic": excluded}, **parts)


def test_a_scale_of_zero_gives_zeros_whatever_is_stored(tmp_path: Path) -> None:
    """NaN too, in blocks and channels; and such a weight is kept."""
    weight, scale = fp8(64, 96), torch.rand(2, 3) + 0.5
    weight.view(torch.uint8)[32:, 64:] = 0x7F
    scale[1, 2] = 0
    config: dict[str, Any] = {"quant_method": "fp8", "weight_block_size": [32, 32]}
    tensors = store(tmp_path, config, up__weight=weight, up__weight_scale_inv=scale)
    plain = read(tensors, "up.weight")
    assert plain[32:, 64:].eq(0).all()
    assert plain.isfinite().all()
    quantized = tensors.tensors["up.weight"].quantized
    assert quantized is not None
    kept = quantized.read()
    assert kept is not None
    assert torch.equal(kept.plain(), plain)
    part = quantized.read_part((slice(30, 50), slice(64, 96)))
    assert part is not None
    assert torch.equal(part.plain(), plain[30:50, 64:])
