"""Writes a checkpoint of floats of 4 and 8 bits with compressed-tensors, and its float32 weights.

The library decompresses FP4 to bfloat16 alone. Here its parts run in float32: the values of codes,
the scales and `dequantize`. It ran on a CPU in an environment of its own:

    uv pip install compressed-tensors==0.20.0 torch==2.11.0 transformers==5.23.0
    python tests/engine/model/checkpoint/quantized/compressed_floats/write.py
"""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors.torch import save_file
from torch import Tensor

NVFP4, MXFP4 = "nvfp4-pack-quantized", "mxfp4-pack-quantized"
CASES: dict[str, tuple[str, tuple[int, int], dict[str, Any]]] = {
    "nvfp4": (NVFP4, (18, 48), {"num_bits": 4, "strategy": "tensor_group", "group_size": 16}),
    "mxfp4": (
        MXFP4,
        (18, 64),
        {"num_bits": 4, "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8},
    ),
    "mxfp8": (
        "mxfp8-quantized",
        (18, 64),
        {"num_bits": 8, "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8},
    ),
    "block": (
        "float-quantized",
        (136, 144),
        {"num_bits": 8, "strategy": "block", "block_structure": [128, 128]},
    ),
    "channel": ("float-quantized", (18, 40), {"num_bits": 8, "strategy": "channel"}),
    "tensor": ("naive-quantized", (18, 40), {"num_bits": 8, "strategy": "tensor"}),
}
"""The format, the shape and the arguments; blocks of 128 end partially in both directions."""


def write(folder: Path) -> None:
    """Write each case with a zero row, a large value, and minus zero among the codes."""
    torch.manual_seed(1)
    groups: dict[str, QuantizationScheme] = {}
    stored: dict[str, Tensor] = {}
    plain: dict[str, Tensor] = {}
    for name, (form, shape, arguments) in CASES.items():
        args = QuantizationArgs(type="float", **arguments)
        groups[name] = QuantizationScheme(targets=[f"re:{name}"], weights=args, format=form)
        weight = torch.randn(shape).to(torch.bfloat16)
        weight[3], weight[4, 5], weight[5, :7] = 0, 30.0, -1e-8
        parts = compress(weight, groups[name])
        stored |= {f"{name}.{end}": one.contiguous() for end, one in parts.items()}
        plain[f"{name}.weight"] = in_float32(parts, groups[name], shape).contiguous()
    config = QuantizationConfig(
        config_groups=groups, format="mixed-precision", quantization_status="compressed"
    ).model_dump(mode="json")
    keys = {"quantization_config": {**config, "version": version("compressed-tensors")}}
    (folder / "config.json").write_text(json.dumps(keys, indent=1) + "\n")
    save_file(stored, folder / "model.safetensors")
    save_file(plain, folder / "dequantized.safetensors")


def compress(weight: Tensor, scheme: QuantizationScheme) -> dict[str, Tensor]:
    assert scheme.weights is not None
    low, high = _extremes(weight, scheme.weights)
    local = {"weight": weight}
    shared = None
    if scheme.format == NVFP4:
        shared = generate_gparam(weight.min().float(), weight.max().float()).reshape(1)
        local["weight_global_scale"] = shared
    scale, zero = calculate_qparams(low, high, scheme.weights, global_scale=shared)
    compressor = BaseCompressor.get_value_from_registry(scheme.format)
    local |= {"weight_scale": scale, "weight_zero_point": zero}
    parts: dict[str, Tensor] = compressor.compress(local, scheme)
    return parts


def in_float32(
    parts: dict[str, Tensor], scheme: QuantizationScheme, shape: tuple[int, int]
) -> Tensor:
    """Return what the library's parts make of stored tensors in float32."""
    if "weight_packed" in parts:
        values = unpack_fp4_from_uint8(parts["weight_packed"], *shape, dtype=torch.float32)
    else:
        values = parts["weight"].float()
    scale = parts["weight_scale"]
    if scale.dtype == torch.uint8:
        compressor: Any = BaseCompressor.get_value_from_registry(MXFP4)
        scale = compressor._decompress_scale(scale, torch.float32)
    plain: Tensor = dequantize(
        x_q=values,
        scale=scale.float(),
        args=scheme.weights,
        global_scale=parts.get("weight_global_scale"),
        dtype=torch.float32,
    )
    return plain


def _extremes(weight: Tensor, args: QuantizationArgs) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest of the values that share a scale."""
    rows, columns = weight.shape
    across = {"tensor": (rows, columns), "channel": (1, columns)}
    if args.block_structure is not None:
        size = tuple(args.block_structure)
    else:
        size = across.get(str(args.strategy), (1, args.group_size))
    bands = [band.split(size[1], 1) for band in weight.split(size[0])]
    low = torch.stack([torch.stack([one.min() for one in band]) for band in bands])
    high = torch.stack([torch.stack([one.max() for one in band]) for band in bands])
    return (low.reshape(1), high.reshape(1)) if args.strategy == "tensor" else (low, high)


if __name__ == "__main__":
    write(Path(__file__).parent)
