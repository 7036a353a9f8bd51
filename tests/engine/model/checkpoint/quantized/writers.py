"""Writes tiny quantized checkpoints, each with the weights as its format dequantizes them.

compressed-tensors writes and dequantizes its own formats. The library of AWQ and GPTQ needs other
versions of torch (`gptqmodel/` has what it wrote): their tensors are packed here, one value at a
time, as their sources describe, and dequantized before they are packed. Float8 blocks and MXFP4
of gpt-oss are dequantized by transformers.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from checks.lossless.published import as_mxfp4, as_nvfp4, compressed_tensors, in_blocks

Stored = dict[str, Tensor]
Quantize = Callable[[Tensor], tuple[Stored, Tensor]]
"""From a matrix to its tensors, by the ends of their names, and to what it is dequantized to."""

AWQ_OUTPUTS = (0, 2, 4, 6, 1, 3, 5, 7)  # of a word, from the lowest bits on
BLOCK = 32


@dataclass(frozen=True, slots=True)
class QuantizedCase:
    """One format: its `quantization_config`, and what a matrix becomes."""

    config: Mapping[str, Any]
    quantize: Quantize
    description: str
    extra: Stored = field(default_factory=dict)  # other tensors of each matrix


def write_quantized(
    case: QuantizedCase, source: Path, folder: Path, maps: tuple[str, ...] = ("_proj",)
) -> Stored:
    """Quantize linear maps, by the ends of their names; return all tensors after dequantization."""
    ends = tuple(f"{end}.weight" for end in maps)
    shutil.copytree(source, folder)
    keys = json.loads((folder / "config.json").read_text())
    keys["quantization_config"] = dict(case.config)
    (folder / "config.json").write_text(json.dumps(keys))
    stored: Stored = {}
    plain: Stored = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if not name.endswith(ends):
            stored[name] = plain[name] = tensor
            continue
        parts, dequantized = case.quantize(tensor)
        plain[name] = dequantized.contiguous()
        module = name.removesuffix(".weight")
        for end, part in {**parts, **case.extra}.items():
            stored[f"{module}.{end}"] = part.contiguous().clone()
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    return plain


def draw_mxfp4_experts(folder: Path) -> None:
    """Put random MXFP4 numbers in place of the experts' matrices [experts, inputs, outputs]."""
    stored: Stored = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            stored[name] = tensor
            continue
        experts, inputs, outputs = tensor.shape
        shape = (experts, outputs, inputs // 32)
        stored[f"{name}_blocks"] = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8)
        stored[f"{name}_scales"] = torch.randint(116, 124, shape, dtype=torch.uint8)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    keys = json.loads((folder / "config.json").read_text())
    keys["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"],
    }
    (folder / "config.json").write_text(json.dumps(keys))


def by_compressed_tensors(form: str, description: str, **weights: Any) -> QuantizedCase:
    """Let the library of the format quantize, pack and dequantize."""
    arguments = QuantizationArgs(**weights)
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments, format=form)
    config = QuantizationConfig(
        config_groups={"group_0": scheme},
        format=form,
        quantization_status="compressed",
        ignore=["lm_head"],
    )
    compressor = BaseCompressor.get_value_from_registry(form)

    def quantize(weight: Tensor) -> tuple[Stored, Tensor]:
        low, high = _extremes(weight, arguments)
        scale, zero_point = calculate_qparams(low, high, arguments)
        local = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero_point}
        parts = compressor.compress(local, scheme)
        return parts, compressor.decompress(parts, scheme)["weight"]

    keys = config.model_dump(mode="json")
    return QuantizedCase(keys, quantize, f"compressed-tensors ({form} of {description})")


def _extremes(weight: Tensor, arguments: QuantizationArgs) -> tuple[Tensor, Tensor]:
    """Return the least and the largest of the values that share a scale."""
    strategy = str(arguments.strategy)
    if strategy == "tensor":
        return weight.min().reshape(1), weight.max().reshape(1)
    if strategy == "channel":
        return weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    rows, columns = (1, arguments.group_size)
    if strategy == "block":
        rows, columns = arguments.block_structure
    tiles = weight.unflatten(1, (-1, columns)).unflatten(0, (-1, rows))  # [b, rows, b, columns]
    return tiles.amin((1, 3)), tiles.amax((1, 3))


def by_awq(group_size: int) -> QuantizedCase:
    """Pack as AutoAWQ's GEMM layout is described; zero points of any value."""

    def quantize(weight: Tensor) -> tuple[Stored, Tensor]:
        inputs = weight.T
        integers, zeros, scales, plain = _integers(inputs, group_size, bits=4)
        return {
            "qweight": _pack_columns(integers, 4, AWQ_OUTPUTS),
            "qzeros": _pack_columns(zeros, 4, AWQ_OUTPUTS),
            "scales": scales,
        }, plain.T

    config = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group_size,
        "version": "gemm",
        "zero_point": True,
        "modules_to_not_convert": None,
    }
    return QuantizedCase(config, quantize, f"awq (int4, groups of {group_size})")


def by_gptq(bits: int, group_size: int, *, is_v2: bool = False, shuffled: bool = False) -> Any:
    """Pack as AutoGPTQ does, or GPTQModel in version 2; inputs perhaps in an order of their own.

    Maps of as many inputs have the same order, as those that read the same rows do.
    """

    def quantize(weight: Tensor) -> tuple[Stored, Tensor]:
        count = weight.shape[1]
        generator = torch.Generator().manual_seed(count)
        order = torch.randperm(count, generator=generator) if shuffled else torch.arange(count)
        integers, zeros, scales, plain = _integers(weight.T[order], group_size, bits)
        place = torch.argsort(order)
        stored_zeros = zeros if is_v2 else (zeros - 1) % 2**bits
        size = group_size if group_size > 0 else count
        parts = {
            "qweight": _pack_columns(integers[place].T, bits).T,
            "qzeros": _pack_columns(stored_zeros, bits),
            "scales": scales,
            "g_idx": (place // size).int(),
        }
        return parts, plain[place].T

    config = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group_size,
        "desc_act": shuffled,
        "sym": False,
        "checkpoint_format": "gptq_v2" if is_v2 else "gptq",
    }
    groups = f"groups of {group_size}" if group_size > 0 else "a scale per channel"
    return QuantizedCase(config, quantize, f"gptq (int{bits}, {groups})")


def _integers(inputs: Tensor, group_size: int, bits: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Quantize [inputs, outputs] by groups of inputs.

    Returns:
        Integers, zero points and scales, and the plain values.
    """
    size = group_size if group_size > 0 else inputs.shape[0]
    groups = inputs.unflatten(0, (-1, size))
    low, high = groups.amin(1).clamp(max=0), groups.amax(1).clamp(min=0)
    scales = ((high - low) / (2**bits - 1)).half()
    zeros = (-low / scales).round().clamp(0, 2**bits - 1).int()
    step, zero = scales.float().unsqueeze(1), zeros.unsqueeze(1)
    integers = (groups / step + zero).round().clamp(0, 2**bits - 1).int()
    plain = (integers - zero) * step
    return integers.flatten(0, 1), zeros, scales, plain.flatten(0, 1)


def _pack_columns(integers: Tensor, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Put the columns that share a word into it, from the lowest bits on."""
    per_word = 32 // bits
    words = torch.zeros(integers.shape[0], integers.shape[1] // per_word, dtype=torch.int64)
    for part, column in enumerate(order or range(per_word)):
        words |= integers[:, column::per_word].long() << (part * bits)
    return torch.where(words >= 2**31, words - 2**32, words).int()


def by_fp8(block: int | None, scale_name: str = "weight_scale_inv") -> QuantizedCase:
    """Write float8 with a factor for each square block, or one; transformers dequantizes."""

    def quantize(weight: Tensor) -> tuple[Stored, Tensor]:
        rows, columns = (block, block) if block else weight.shape
        float8, scale = in_blocks(weight, rows, columns)
        plain = Fp8Dequantize(None)._dequantize_one(float8, scale, torch.float32)
        return {"weight": float8, scale_name: scale if block else scale.reshape(())}, plain

    config: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    if block:
        config |= {"weight_block_size": [block, block], "modules_to_not_convert": ["lm_head"]}
    sizes = f"blocks of {block} x {block}" if block else "one scale per tensor"
    extra = {} if block else {"input_scale": torch.tensor(0.5)}
    return QuantizedCase(config, quantize, f"fp8 (float8, {sizes})", extra)


def by_float4(form: str, group: int) -> QuantizedCase:
    """Write float4 as compressed-tensors; its own functions dequantize, in float32."""
    strategy = "group" if form == "mxfp4" else "tensor_group"
    config = compressed_tensors(f"{form}-pack-quantized", group, strategy)

    def quantize(weight: Tensor) -> tuple[Stored, Tensor]:
        parts = as_mxfp4(weight) if form == "mxfp4" else as_nvfp4(weight)
        numbers = unpack_fp4_from_uint8(parts["weight_packed"], *weight.shape, dtype=torch.float32)
        scale = parts["weight_scale"].view(
            torch.float8_e8m0fnu if form == "mxfp4" else torch.float8_e4m3fn
        )
        arguments = QuantizationArgs(num_bits=4, type="float", strategy=strategy, group_size=group)
        plain = dequantize(
            numbers, scale.float(), args=arguments, dtype=torch.float32,
            global_scale=parts.get("weight_global_scale"),
        )  # fmt: skip
        return parts, plain

    return QuantizedCase(
        config, quantize, f"compressed-tensors ({form}-pack-quantized of 4 bits, groups of {group})"
    )


def by_modelopt() -> QuantizedCase:
    """As modelopt declares what `by_fp8` writes with one scale."""
    config = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["model.embed_tokens"]}
    plain = by_fp8(None, "weight_scale")
    return QuantizedCase(config, plain.quantize, "modelopt (FP8)", plain.extra)


CASES: dict[str, QuantizedCase] = {
    "int8-channel": by_compressed_tensors(
        "int-quantized", "8 bits, a scale per channel", num_bits=8, strategy="channel"
    ),
    "int8-tensor-asymmetric": by_compressed_tensors(
        "naive-quantized",
        "8 bits, one scale per tensor",
        num_bits=8,
        strategy="tensor",
        symmetric=False,
    ),
    "fp8-channel": by_compressed_tensors(
        "float-quantized",
        "8 bits, a scale per channel",
        num_bits=8,
        type="float",
        strategy="channel",
    ),
    "fp8-block": by_compressed_tensors(
        "float-quantized",
        f"8 bits, blocks of {BLOCK} x {BLOCK}",
        num_bits=8,
        type="float",
        strategy="block",
        block_structure=[BLOCK, BLOCK],
    ),
    "w4a16-group": by_compressed_tensors(
        "pack-quantized", "4 bits, groups of 32", num_bits=4, strategy="group", group_size=32
    ),
    "w4a16-asymmetric": by_compressed_tensors(
        "pack-quantized",
        "4 bits, groups of 32",
        num_bits=4,
        strategy="group",
        group_size=32,
        symmetric=False,
    ),
    "w8a16-tensor-asymmetric": by_compressed_tensors(
        "pack-quantized",
        "8 bits, one scale per tensor",
        num_bits=8,
        strategy="tensor",
        symmetric=False,
    ),
    "w3a16-group": by_compressed_tensors(
        "pack-quantized", "3 bits, groups of 32", num_bits=3, strategy="group", group_size=32
    ),
    "w8a16-group": by_compressed_tensors(
        "pack-quantized", "8 bits, groups of 32", num_bits=8, strategy="group", group_size=32
    ),
    "w8a16-channel-asymmetric": by_compressed_tensors(
        "pack-quantized",
        "8 bits, a scale per channel",
        num_bits=8,
        strategy="channel",
        symmetric=False,
    ),
    "awq": by_awq(32),
    "gptq": by_gptq(4, 32),
    "gptq-v2-shuffled": by_gptq(4, 32, is_v2=True, shuffled=True),
    "gptq-8-bits-per-channel": by_gptq(8, -1),
    "fp8-deepseek": by_fp8(BLOCK),
    "fp8-tensor": by_fp8(None, "weight_scale"),
    "mxfp4": by_float4("mxfp4", 32),
    "nvfp4": by_float4("nvfp4", 16),
    "modelopt-fp8": by_modelopt(),
}
