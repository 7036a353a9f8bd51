"""A Llama checkpoint in Hugging Face's format, rewritten as a GGUF in float16 or float32."""

import json
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from bench.cpu.peers.byte_vocabulary import (
    BOS_ID,
    CHAT_TEMPLATE,
    EOS_ID,
    PAD_ID,
    SPECIAL,
    make_vocabulary,
)
from bench.cpu.peers.gguf import Field, NamedTensor, write_gguf

FloatType = Literal["float16", "float32"]
_FILE_TYPES = {"float32": 0, "float16": 1}
_NORMAL_TOKEN, _CONTROL_TOKEN = 1, 3
_OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_IN_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_llama_gguf(checkpoint: Path, path: Path, dtype: FloatType = "float16") -> None:
    """Write the checkpoint in `checkpoint` to the file `path`, with its byte vocabulary.

    Args:
        dtype: of matrices; vectors are float32.
    """
    config = json.loads((checkpoint / "config.json").read_text())
    weights = load_file(checkpoint / "model.safetensors")
    tensors = [
        NamedTensor(gguf_name(name), _converted(name, values, config, dtype))
        for name, values in weights.items()
    ]
    fields = _model_fields(config) | _tokenizer_fields(config["vocab_size"])
    write_gguf(path, fields | {"general.file_type": _FILE_TYPES[dtype]}, tensors)


def write_gguf_folder(checkpoint: Path, name: str) -> str:
    """Write a file of float16 into a folder of its own, where OpenVINO saves what it makes of it.

    Returns:
        The file's path.
    """
    folder = checkpoint.with_name(f"{checkpoint.name}-{name}")
    folder.mkdir()
    path = folder / "model.gguf"
    write_llama_gguf(checkpoint, path)
    return str(path)


def gguf_name(name: str) -> str:
    """Translate a tensor's name."""
    if name in _OUTER:
        return _OUTER[name]
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{_IN_LAYER[rest.removesuffix('.weight')]}.weight"


def interleave_halves(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Reorder a projection's rows from rotating halves to rotating neighbours, as GGUF has it.

    Args:
        weight: [heads * head_dim, hidden].
    """
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))


def _converted(
    name: str, values: NDArray[np.float32], config: dict[str, int], dtype: FloatType
) -> NDArray[np.float32] | NDArray[np.float16]:
    if values.ndim == 1:
        return values.astype(np.float32)
    if ".q_proj." in name:
        values = interleave_halves(values, config["num_attention_heads"])
    if ".k_proj." in name:
        values = interleave_halves(values, config["num_key_value_heads"])
    return values if dtype == "float32" else values.astype(np.float16)


def _model_fields(config: dict[str, int]) -> dict[str, Field]:
    return {
        "general.architecture": "llama",
        "general.name": "random",
        "general.alignment": 32,
        "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.key_length": config["head_dim"],
        "llama.attention.value_length": config["head_dim"],
        "llama.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "llama.rope.freq_base": float(config["rope_theta"]),
        "llama.rope.dimension_count": config["head_dim"],
        "llama.vocab_size": config["vocab_size"],
    }


def _tokenizer_fields(size: int) -> dict[str, Field]:
    vocabulary = make_vocabulary(size)
    ordinary = size - len(SPECIAL)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": vocabulary.tokens,
        "tokenizer.ggml.token_type": [_CONTROL_TOKEN] * len(SPECIAL) + [_NORMAL_TOKEN] * ordinary,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in vocabulary.merges],
        "tokenizer.ggml.bos_token_id": BOS_ID,
        "tokenizer.ggml.eos_token_id": EOS_ID,
        "tokenizer.ggml.padding_token_id": PAD_ID,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
