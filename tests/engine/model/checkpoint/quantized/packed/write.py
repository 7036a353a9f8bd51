"""Writes a checkpoint of packed matrices with compressed-tensors, and what they decompress to.

The layout of rows changed with version 0.18. Tests run the installed version; the one before wrote
the checkpoint of this folder, on a CPU in an environment of its own:

    uv pip install compressed-tensors==0.17.0
    python tests/engine/model/checkpoint/quantized/packed/write.py
"""

import json
from importlib.metadata import version
from pathlib import Path

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file
from torch import Tensor

FORM = "pack-quantized"
OUTPUTS = 20
INPUTS = (20, 96)
"""20 inputs take as many words in both layouts, and 96 do not."""


def write(folder: Path) -> None:
    """Write all widths, with scales of channels and of groups, symmetric or not."""
    torch.manual_seed(1)
    groups: dict[str, QuantizationScheme] = {}
    stored: dict[str, Tensor] = {}
    plain: dict[str, Tensor] = {}
    for bits in range(2, 9):
        for is_symmetric in (True, False):
            strategy = "channel" if bits % 2 else "group"
            weights = QuantizationArgs(
                num_bits=bits,
                symmetric=is_symmetric,
                strategy=strategy,
                group_size=4 if strategy == "group" else None,
            )
            kind = f"w{bits}-{'symmetric' if is_symmetric else 'asymmetric'}"
            scheme = QuantizationScheme(targets=[f"re:{kind}"], weights=weights, format=FORM)
            groups[kind] = scheme
            for inputs in INPUTS:
                name = f"{kind}-{inputs}"
                parts, matrix = compress(torch.randn(OUTPUTS, inputs), scheme)
                stored |= {f"{name}.{end}": one.contiguous() for end, one in parts.items()}
                plain[f"{name}.weight"] = matrix.contiguous()
    config = QuantizationConfig(
        config_groups=groups, format=FORM, quantization_status="compressed"
    ).model_dump(mode="json")
    keys = {"quantization_config": {**config, "version": version("compressed-tensors")}}
    (folder / "config.json").write_text(json.dumps(keys, indent=1) + "\n")
    save_file(stored, folder / "model.safetensors")
    save_file(plain, folder / "decompressed.safetensors")


def compress(weight: Tensor, scheme: QuantizationScheme) -> tuple[dict[str, Tensor], Tensor]:
    assert scheme.weights is not None
    size = scheme.weights.group_size or weight.shape[1]
    tiles = weight.unflatten(1, (-1, size))
    scale, zero_point = calculate_qparams(tiles.amin(2), tiles.amax(2), scheme.weights)
    compressor = BaseCompressor.get_value_from_registry(FORM)
    local = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero_point}
    parts = compressor.compress(local, scheme)
    return parts, compressor.decompress(dict(parts), scheme)["weight"]


if __name__ == "__main__":
    write(Path(__file__).parent)
