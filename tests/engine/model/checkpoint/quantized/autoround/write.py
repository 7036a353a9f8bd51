"""Writes the checkpoints of this folder with AutoRound, and the weights that it dequantizes.

AutoRound is not locked with this project; it ran on a CPU in an environment of its own, with torch
2.15 and transformers 5.24:

    uv pip install auto-round==0.16.1
    python tests/engine/model/checkpoint/quantized/autoround/write.py
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from auto_round import AutoRound
from safetensors.torch import save_file
from tokenizers import Tokenizer, models
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

HERE = Path(__file__).parent
VOCAB = 32
MIXED = {"lm_head": {"bits": 8}, "model.layers.0.mlp.down_proj": {"bits": 16}}
SETTINGS: dict[str, dict[str, Any]] = {
    "w2-asymmetric": {"scheme": "W2A16", "sym": False},
    "w3": {"scheme": "W3A16"},
    "w4": {"scheme": "W4A16"},
    "w4-mixed": {"scheme": "W4A16", "layer_config": MIXED},
}


def write(case: str, plain: Path) -> None:
    """Quantize the model in `plain`, and keep config, tensors and dequantized weights."""
    quantizer = AutoRound(
        str(plain), group_size=32, iters=0, disable_opt_rtn=True, device_map="cpu", **SETTINGS[case]
    )
    written = plain.with_name(case)
    quantizer.quantize_and_save(str(written), format="auto_round")
    config = next(written.rglob("config.json"))
    (HERE / case).mkdir(exist_ok=True)
    for file in ("config.json", "model.safetensors"):
        shutil.copy(config.with_name(file), HERE / case)
    loaded = AutoModelForCausalLM.from_pretrained(
        config.parent, dtype=torch.float32, device_map="cpu"
    )
    weights = {
        f"{name}.weight": one.float()(torch.eye(one.infeatures)).T.contiguous()
        for name, one in loaded.named_modules()
        if hasattr(one, "qweight")
    }
    save_file(weights, HERE / case / "dequantized.safetensors")


def main() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=64,
    )
    words = {f"w{index}": index for index in range(VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "plain"
        LlamaForCausalLM(config).half().save_pretrained(plain)
        PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(plain)
        for case in SETTINGS:
            write(case, plain)


if __name__ == "__main__":
    main()
