"""Quantized checkpoints with the weights of others, in the formats of published ones."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from checks.lossless.run import Models
from specdecode_kernels import MXFP4, NVFP4, quantize

BLOCK = 32
"""Rows and columns that share a scale of float8, weights that share one of int4: the fewest that
kernels take."""
TINY = torch.finfo(torch.float32).tiny
STACKED = ("experts.gate_up_proj", "experts.down_proj")
"""Ends of the names of experts in one tensor [experts, inputs, outputs] (gpt-oss)."""

Stored = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Published:
    """One format: its `quantization_config`, and the tensors of a linear map by their ends."""

    config: Mapping[str, object]
    store: Callable[[Tensor], Stored]
    group: int = 1  # of which the inputs are a multiple


def stored_as(models: Models, quantization: str, folder: Path, fault: str | None = None) -> Models:
    """Return the models of a case; checkpoints are written where the folder lacks them.

    Args:
        quantization: what the case has drawn: one of `PUBLISHED`, in which the target and the
            draft of STANDALONE are stored then, or what weights are rounded to.
        fault: one of `FAULTS`, in the target alone.
    """
    if quantization not in PUBLISHED:
        return replace(models, quantization=quantization)
    drafts = dict(models.drafts)
    if "STANDALONE" in drafts:
        drafts["STANDALONE"] = write_published(drafts["STANDALONE"], quantization, folder)
    target = write_published(models.target, quantization, folder, fault)
    return replace(models, target=target, drafts=drafts)


def write_published(source: Path, name: str, folder: Path, fault: str | None = None) -> Path:
    """Write a checkpoint with quantized projections, next to others of the folder; return it."""
    into = folder / "-".join(filter(None, (source.name, name, fault)))
    if into.exists():
        return into
    shutil.copytree(source, into)
    config, tensors = as_published(load_file(source / "model.safetensors"), name)
    keys = json.loads((into / "config.json").read_text())
    (into / "config.json").write_text(json.dumps(keys | {"quantization_config": config}))
    if fault is not None:
        tensors = {each: FAULTS[fault](each, tensor) for each, tensor in tensors.items()}
    save_file(tensors, into / "model.safetensors", {"format": "pt"})
    return into


def _neighbouring_scales(name: str, tensor: Tensor) -> Tensor:
    is_scale = name.endswith(("_scale", "_scales", "_scale_inv"))
    return (
        tensor.view(torch.uint8).roll(tensor.element_size(), -1).view(tensor.dtype)
        if is_scale
        else tensor
    )


def _swapped_halves(name: str, tensor: Tensor) -> Tensor:
    is_packed = name.endswith(("_packed", "_blocks"))
    return (tensor >> 4) | (tensor << 4) if is_packed else tensor


FAULTS: Mapping[str, Callable[[str, Tensor], Tensor]] = {
    "neighbouring-scales": _neighbouring_scales,
    "swapped-halves": _swapped_halves,
}
"""How a reader of quantized weights may be wrong: what it makes of a tensor."""


def as_published(tensors: Stored, name: str) -> tuple[dict[str, object], Stored]:
    """Return the `quantization_config` and the tensors of a checkpoint in one of `PUBLISHED`."""
    is_stacked = name == "mxfp4" and any(one.endswith(STACKED) for one in tensors)
    form, stored = OF_GPT_OSS if is_stacked else PUBLISHED[name], Stored()
    for each, tensor in tensors.items():
        if is_stacked and each.endswith(STACKED) and not tensor.shape[-2] % form.group:
            stored |= {f"{each}_{end}": part for end, part in form.store(tensor).items()}
        elif not is_stacked and _is_map(each, tensor, form.group):
            module = each.removesuffix(".weight")
            stored |= {f"{module}.{end}": part for end, part in form.store(tensor.float()).items()}
        else:
            stored[each] = tensor
    return dict(form.config), stored


def _is_map(name: str, tensor: Tensor, group: int) -> bool:
    return name.endswith("_proj.weight") and tensor.dim() == 2 and not tensor.shape[1] % group


def in_blocks(weight: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Return float8 and the factor of each block of rows and columns; the last may be smaller."""
    outputs, inputs = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -inputs % columns, 0, -outputs % rows))
    down, across = len(padded) // rows, padded.shape[1] // columns
    tiles = padded.view(down, rows, across, columns)
    scales = tiles.abs().amax((1, 3)) / torch.finfo(torch.float8_e4m3fn).max
    scaled = tiles / scales.clamp(min=TINY)[:, None, :, None]
    float8 = scaled.view(padded.shape)[:outputs, :inputs].to(torch.float8_e4m3fn)
    return float8.contiguous(), scales


def _as_float8(weight: Tensor, block: int = BLOCK) -> Stored:
    values, scales = in_blocks(weight, block, block)
    return {"weight": values, "weight_scale_inv": scales}


def _as_int8(weight: Tensor) -> Stored:
    scales = weight.abs().amax(1, keepdim=True).clamp(min=TINY) / 127
    return {"weight": (weight / scales).round().to(torch.int8), "weight_scale": scales}


def _as_int4(weight: Tensor) -> Stored:
    groups = weight.view(len(weight), -1, BLOCK)
    scales = groups.abs().amax(2).clamp(min=TINY) / 7
    integers = (groups / scales[:, :, None]).round().int().flatten(1)
    return {
        "weight_packed": _in_words(integers),
        "weight_scale": scales,
        "weight_shape": torch.tensor(weight.shape),
    }


def _with_zero_points(weight: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Round groups [outputs, groups, inputs] to integers; return these, scales and zero points."""
    low, high = weight.amin(2).clamp(max=0), weight.amax(2).clamp(min=0)
    half = 1 << bits - 1
    scales = ((high - low) / (2 * half - 1)).clamp(min=TINY)
    zeros = (-half - low / scales).round().clamp(-half, half - 1)
    integers = (weight / scales[:, :, None]).round() + zeros[:, :, None]
    return integers.clamp(-half, half - 1).int(), scales, zeros.to(torch.int8)


def _as_shifted_int8(weight: Tensor) -> Stored:
    integers, scales, zeros = _with_zero_points(weight[:, None], bits=8)
    values = integers[:, 0].to(torch.int8)
    return {"weight": values, "weight_scale": scales, "weight_zero_point": zeros}


def _as_ordered_int4(weight: Tensor) -> Stored:
    inputs = weight.shape[1]
    order = torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))
    groups = weight[:, order].view(len(weight), -1, BLOCK)
    integers, scales, zeros = _with_zero_points(groups, bits=4)
    place = order.argsort()  # of each input among the sorted ones
    return {
        "weight_packed": _in_words(integers.flatten(1)[:, place]),
        "weight_scale": scales,
        "weight_zero_point": zeros,
        "weight_g_idx": (place // BLOCK).int(),
        "weight_shape": torch.tensor(weight.shape),
    }


def _in_words(integers: Tensor) -> Tensor:
    """Pack integers from -8 to 7 [outputs, inputs], eight in a word, the lowest bits first."""
    nibbles = integers.add(8).view(len(integers), -1, 8)
    return (nibbles << torch.arange(0, 32, 4)).sum(2).to(torch.int32)


def as_mxfp4(weight: Tensor) -> Stored:
    """Return what compressed-tensors stores of a matrix whose inputs are a multiple of 32."""
    rounded = quantize(weight, MXFP4)
    values, scales = (one.view(torch.uint8) for one in (rounded.values, rounded.scales))
    return {"weight_packed": values, "weight_scale": scales}


def as_nvfp4(weight: Tensor) -> Stored:
    """As `as_mxfp4`, for a multiple of 16; one scale for the whole matrix divides the others."""
    rounded = quantize(weight.reshape(1, -1), NVFP4)
    assert rounded.factors is not None
    return {
        "weight_packed": rounded.values.view(torch.uint8).view(len(weight), -1),
        "weight_scale": rounded.scales.view(len(weight), -1),
        "weight_global_scale": 1 / rounded.factors,
    }


def _as_experts(weights: Tensor) -> Stored:
    rounded = quantize(weights.float().mT.contiguous(), MXFP4)
    values, scales = (one.view(torch.uint8) for one in (rounded.values, rounded.scales))
    return {"blocks": values.view(*scales.shape, 16), "scales": scales}


def compressed_tensors(form: str, group: int, strategy: str) -> dict[str, object]:
    """Return the `quantization_config` of weights in float4."""
    return _in_one_group(form, num_bits=4, type="float", strategy=strategy, group_size=group)


def _in_one_group(form: str, **weights: object) -> dict[str, object]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}


PUBLISHED: Mapping[str, Published] = {
    "float8": Published({"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}, _as_float8),
    "float8-128": Published(
        {"quant_method": "fp8", "weight_block_size": [128, 128]}, partial(_as_float8, block=128)
    ),  # as DeepSeek and Qwen
    "w8a16": Published(
        _in_one_group("int-quantized", num_bits=8, strategy="channel", symmetric=True), _as_int8
    ),
    "w4a16": Published(
        _in_one_group(
            "pack-quantized", num_bits=4, strategy="group", group_size=BLOCK, symmetric=True
        ),
        _as_int4,
        BLOCK,
    ),
    "w8a16-zeros": Published(
        _in_one_group("int-quantized", num_bits=8, strategy="channel", symmetric=False),
        _as_shifted_int8,
    ),
    "w4a16-actorder": Published(
        _in_one_group(
            "pack-quantized",
            num_bits=4,
            strategy="group",
            group_size=BLOCK,
            symmetric=False,
            actorder="group",
        ),
        _as_ordered_int4,
        BLOCK,
    ),  # zero points, and groups of inputs that are not consecutive
    "mxfp4": Published(
        compressed_tensors("mxfp4-pack-quantized", MXFP4.group, "group"), as_mxfp4, MXFP4.group
    ),
    "nvfp4": Published(
        compressed_tensors("nvfp4-pack-quantized", NVFP4.group, "tensor_group"),
        as_nvfp4,
        NVFP4.group,
    ),
}
OF_GPT_OSS = Published({"quant_method": "mxfp4"}, _as_experts, MXFP4.group)
