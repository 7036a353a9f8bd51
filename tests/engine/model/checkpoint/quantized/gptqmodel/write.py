"""Writes the checkpoints of this folder with GPTQModel, and the weights that it dequantizes.

GPTQModel is not locked with this project, since it pins other versions of torch and transformers;
it was run on a CPU in an environment of its own, with torch 2.11 and transformers 5.23:

    uv pip install --no-build-isolation gptqmodel==7.7.0
    export GPTQMODEL_CPU_WORKERS=2
    python tests/engine/model/checkpoint/quantized/gptqmodel/write.py TOKENIZER [CASE ...]

TOKENIZER is the folder of any tokenizer: GPTQModel wants one, and the prompts do not need it.
`gptq-head` was written with torch 2.15 and transformers 5.24, the versions that 7.7.0 requires.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from gptqmodel import BACKEND, GPTQModel, QuantizeConfig
from safetensors.torch import save_file
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

HERE = Path(__file__).parent
VOCAB = 64
DYNAMIC: dict[str, dict[str, Any]] = {"-:.*k_proj": {}, r".*mlp\.up": {"bits": 8}, ".*up_proj": {}}
"""Besides the head, for which the library adds 8 bits in groups of 32."""
SETTINGS: dict[str, dict[str, Any]] = {
    "awq": {"method": "awq", "format": "gemm", "sym": False},
    "gptq-desc-act": {"format": "gptq", "desc_act": True, "sym": False},
    "gptq-v2": {"format": "gptq_v2", "desc_act": False, "sym": False},
    "gptq-head": {"format": "gptq", "desc_act": False, "lm_head": True, "dynamic": DYNAMIC},
}

IN_FLOAT32 = ("gptq-head",)


def write(case: str, plain: Path) -> None:
    """Quantize the model in `plain`, and keep config, tensors and dequantized weights."""
    config = QuantizeConfig(bits=4, group_size=32, offload_to_disk=False, **SETTINGS[case])
    model = GPTQModel.load(str(plain), config, device="cpu", dtype=torch.float16)
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(0, VOCAB, (64, 48), generator=generator).tolist()
    model.quantize([{"input_ids": one, "attention_mask": [1] * len(one)} for one in prompts])
    written = plain.with_name(case)
    model.save(str(written))
    (HERE / case).mkdir(exist_ok=True)
    for file in ("config.json", "model.safetensors"):
        shutil.copy(written / file, HERE / case)
    loaded = GPTQModel.load(str(written), device="cpu", backend=BACKEND.TORCH, dtype=torch.float16)
    dequantize = in_float32 if case in IN_FLOAT32 else in_float16
    weights = {
        f"{name}.weight": dequantize(one).T.contiguous()
        for name, one in loaded.model.named_modules()
        if hasattr(one, "qweight")
    }
    save_file(weights, HERE / case / "dequantized.safetensors")


def in_float16(module: Any) -> torch.Tensor:
    """Return what the module multiplies with, [inputs, outputs]."""
    plain: torch.Tensor = module(torch.eye(module.in_features, dtype=torch.float16))
    return plain


def in_float32(module: Any) -> torch.Tensor:
    """As `in_float16`, with scales that are widened before the product."""
    module.scales = module.scales.float()
    plain: torch.Tensor = module.dequantize_weight()
    assert plain.dtype == torch.float32
    return plain


def main(tokenizer: str, cases: list[str]) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        max_position_embeddings=64,
    )
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "plain"
        LlamaForCausalLM(config).half().save_pretrained(plain)
        AutoTokenizer.from_pretrained(tokenizer).save_pretrained(plain)
        for case in cases or SETTINGS:
            write(case, plain)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
