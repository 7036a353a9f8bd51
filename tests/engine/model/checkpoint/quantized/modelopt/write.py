"""Writes the checkpoints of this folder with nvidia-modelopt, and the weights that it dequantizes.

modelopt is not locked with this project, since it pins other versions of torch and transformers; it
was run on a CPU in an environment of its own:

    uv pip install "nvidia-modelopt[hf]==0.47.0" torch==2.11.0 transformers==5.14.1
    python tests/engine/model/checkpoint/quantized/modelopt/write.py

Weights are dequantized from the written file by modelopt's classes of quantized tensors, in
float32. modelopt does not unpack its own AWQ layout: there the values that are dequantized here are
packed again by its `pack_int4_in_uint8`, and the bytes must be those of the file.

NVFP4 and the MX formats calibrate without a forward on a CPU, so they have no `input_scale`.
"""

import copy
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.export.quant_utils import pack_int4_in_uint8
from modelopt.torch.quantization.qtensor import FP8QTensor, MXFP4QTensor, NVFP4QTensor
from modelopt.torch.quantization.qtensor.mxfp8_tensor import MXFP8QTensor
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

HERE = Path(__file__).parent
VOCAB = 32
AWQ_GROUP = 32
Parts = dict[str, Tensor]
Dequantize = Callable[[Parts], Tensor]


def fp8(parts: Parts) -> Tensor:
    scale = parts["weight_scale"]
    return _fp8(parts, scale=scale if scale.dim() == 0 else scale[:, None])


def fp8_blocks(parts: Parts) -> Tensor:
    """The library dequantizes scales without the dimensions of size 1 that it writes."""
    scale = parts["weight_scale"][:, 0, :, 0]
    return _fp8(parts, scale=scale, block_sizes={-1: 128, -2: 128})


def _fp8(parts: Parts, **arguments: Any) -> Tensor:
    weight = parts["weight"]
    plain: Tensor = FP8QTensor(weight.shape, torch.float32, weight).dequantize(
        torch.float32, **arguments
    )
    return plain


def nvfp4(parts: Parts) -> Tensor:
    packed = parts["weight"]
    shape = torch.Size((packed.shape[0], packed.shape[1] * 2))
    plain: Tensor = NVFP4QTensor(shape, torch.float32, packed).dequantize(
        torch.float32,
        scale=parts["weight_scale"],
        double_scale=parts["weight_scale_2"],
        block_sizes={-1: 16},
    )
    return plain


def mxfp4(parts: Parts) -> Tensor:
    packed = parts["weight"]
    shape = torch.Size((packed.shape[0], packed.shape[1] * 2))
    plain: Tensor = MXFP4QTensor(shape, torch.float32, packed).dequantize(
        torch.float32, scale=parts["weight_scale"], block_sizes={-1: 32}
    )
    return plain


def mxfp8(parts: Parts) -> Tensor:
    weight = parts["weight"]
    plain: Tensor = MXFP8QTensor(weight.shape, torch.float32, weight).dequantize(
        torch.float32, scale=parts["weight_scale"], block_sizes={-1: 32}
    )
    return plain


def awq(parts: Parts) -> Tensor:
    """Two rows in a byte, the even one low; `pre_quant_scale` multiplies columns last."""
    packed, scale = parts["weight"], parts["weight_scale"]
    integers = torch.stack([packed & 15, packed >> 4], 1).flatten(0, 1).int()
    integers = torch.where(integers > 7, integers - 16, integers)
    plain = integers.float() * scale.repeat_interleave(AWQ_GROUP, 1)
    assert torch.equal(pack_int4_in_uint8(plain, scale, AWQ_GROUP), packed)
    return plain * parts["pre_quant_scale"].float() if "pre_quant_scale" in parts else plain


@dataclass(frozen=True)
class Recipe:
    """A checkpoint: how modelopt quantizes the model, and how it dequantizes a weight."""

    config: dict[str, Any]
    dequantize: Dequantize
    has_forward: bool = True
    sizes: dict[str, int] = field(default_factory=dict)
    compared: tuple[str, ...] = ("_proj",)
    """Ends of the names of the modules whose float32 is stored."""


def changed(config: dict[str, Any], *rules: tuple[str, Any]) -> dict[str, Any]:
    """Return a config with further rules for quantizers by name, None for no quantizer."""
    own = copy.deepcopy(config)
    for name, cfg in rules:
        off = {"quantizer_name": name, "enable": False}
        own["quant_cfg"].append(off if cfg is None else {"quantizer_name": name, "cfg": cfg})
    return own


def in_groups(config: dict[str, Any], size: int) -> dict[str, Any]:
    """Return a config of AWQ with other groups."""
    own = copy.deepcopy(config)
    for rule in own["quant_cfg"]:
        cfg = rule.get("cfg") or []
        for one in cfg if isinstance(cfg, list) else [cfg]:
            if -1 in one.get("block_sizes", {}):
                one["block_sizes"][-1] = size
    return own


FLOAT8 = {"num_bits": (4, 3), "axis": None}
PARTIAL_BLOCKS = {"hidden_size": 144, "head_dim": 136, "intermediate_size": 16}
"""Blocks of 128 that end partially, in both directions."""

RECIPES: dict[str, Recipe] = {
    "fp8": Recipe(
        changed(mtq.FP8_DEFAULT_CFG, ("*[kv]_bmm_quantizer", FLOAT8), ("*gate_proj*", None)), fp8
    ),
    "fp8-channel": Recipe(mtq.FP8_PER_CHANNEL_PER_TOKEN_CFG, fp8),
    "fp8-blocks": Recipe(
        mtq.FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG,
        fp8_blocks,
        sizes=PARTIAL_BLOCKS,
        compared=("o_proj", "up_proj"),
    ),
    "nvfp4": Recipe(
        changed(mtq.NVFP4_DEFAULT_CFG, ("*self_attn*", None)), nvfp4, has_forward=False
    ),
    "mxfp4": Recipe(mtq.MXFP4_DEFAULT_CFG, mxfp4, has_forward=False),
    "mxfp8": Recipe(mtq.MXFP8_DEFAULT_CFG, mxfp8, has_forward=False),
    "w4a16-awq": Recipe(in_groups(mtq.INT4_AWQ_CFG, AWQ_GROUP), awq),
    "w4a8-awq": Recipe(in_groups(mtq.W4A8_AWQ_BETA_CFG, AWQ_GROUP), awq),
    "mixed": Recipe(
        changed(
            mtq.NVFP4_DEFAULT_CFG,
            ("*self_attn*weight_quantizer", FLOAT8),
            ("*self_attn*input_quantizer", FLOAT8),
        ),
        lambda parts: nvfp4(parts) if "weight_scale_2" in parts else fp8(parts),
        has_forward=False,
    ),
}


def make_model(sizes: dict[str, int]) -> Any:
    """Return a random model with a zero weight, zero rows and one large value."""
    torch.manual_seed(0)
    keys: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "head_dim": 32}
    config = LlamaConfig(
        vocab_size=VOCAB,
        num_attention_heads=1,
        num_hidden_layers=1,
        num_key_value_heads=1,
        max_position_embeddings=64,
        architectures=["LlamaForCausalLM"],
        **{**keys, **sizes},
    )
    model: Any = LlamaForCausalLM(config)
    model.to(torch.bfloat16)
    layer = model.model.layers[0]
    with torch.no_grad():
        layer.self_attn.k_proj.weight.zero_()
        layer.self_attn.o_proj.weight[3:5].zero_()
        layer.mlp.down_proj.weight[7, 5] = 4.0
    return model


def write(case: str, recipe: Recipe) -> None:
    """Quantize a model, and keep its config, its tensors and its dequantized weights."""
    model = make_model(recipe.sizes)

    def forward(model: Any) -> None:
        for _ in range(4):
            model(torch.randint(0, VOCAB, (2, 32)))

    mtq.quantize(model, recipe.config, forward if recipe.has_forward else None)
    (HERE / case).mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        export_hf_checkpoint(model, export_dir=folder)
        for file in ("config.json", "hf_quant_config.json", "model.safetensors"):
            shutil.copy(Path(folder) / file, HERE / case)
        tensors = load_file(Path(folder) / "model.safetensors")
    modules = [name.removesuffix(".weight_scale") for name in tensors if name.endswith(SCALE)]
    plain = {
        f"{module}.weight": recipe.dequantize(
            {end: tensors[key] for end in ENDS if (key := f"{module}.{end}") in tensors}
        ).contiguous()
        for module in modules
        if module.endswith(recipe.compared)
    }
    assert plain
    save_file(plain, HERE / case / "dequantized.safetensors")


SCALE = ".weight_scale"
ENDS = ("weight", "weight_scale", "weight_scale_2", "pre_quant_scale")

if __name__ == "__main__":
    for case, recipe in RECIPES.items():
        write(case, recipe)
