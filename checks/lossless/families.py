"""Checkpoints of other families with the weights of a Llama, so that drafts made for it still fit.

Each differs from Llama in what is its own: norms of query and key heads, biases, windows, rotary
angles by the length of the text. Windows are narrow, so that texts are several times as long, and
trees may be deeper than what a row sees.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from checks.lossless.recurrent_families import (
    RECURRENT_CHANGES,
    Keys,
    Tensors,
    add_head_norms,
    normal,
)

LLAMA = "llama"
LONGROPE = "llama-longrope"
LATENT = "deepseek_v3"
RECURRENT = tuple(RECURRENT_CHANGES)
"""The families with states, which are never drafts."""
WITHOUT_WINDOWS = (LONGROPE, LATENT, *RECURRENT)
WINDOW = 12
SHORT_TEXT = 40
"""Tokens up to which a text has the short factors of longrope: some requests of most batches."""
EXPERTS = 5
EXPERT_NOISE = 0.3
"""Of the width of an MLP's weights: experts differ, and two together still do its work."""
ALPHA = 1.702
"""Of the sigmoid in the gate of gpt-oss."""

ROPE = 8
"""Numbers of a head of latent attention that turn."""

OUTPUT_NORM = 0.5
"""Mean factor of the norms of what attention and the MLP add, of the size of embeddings."""


def make_family(family: str, llama: Path, into: Path, *, window: int = WINDOW) -> Path:
    """Write a checkpoint of `family` with the weights of the checkpoint `llama`; return it.

    Args:
        window: of every layer with a sliding window, in positions.
    """
    into.mkdir(parents=True)
    for file in llama.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            shutil.copy(file, into)
    keys = json.loads((llama / "config.json").read_text())
    tensors = load_file(llama / "model.safetensors")
    architecture, change = _CHANGES[family]
    keys |= {"architectures": [architecture], "model_type": family.split("-")[0]}
    if family not in WITHOUT_WINDOWS:
        keys["sliding_window"] = window
    change(keys, tensors, torch.Generator().manual_seed(0))
    (into / "config.json").write_text(json.dumps(keys))
    save_file(tensors, into / "model.safetensors")
    return into


def _to_mistral(keys: Keys, tensors: Tensors, generator: torch.Generator) -> None:
    """Windows in every layer, which is what `sliding_window` means there."""


def _to_qwen2(keys: Keys, tensors: Tensors, generator: torch.Generator) -> None:
    """Biases of q, k and v; windows from a layer on."""
    for number in range(keys["num_hidden_layers"]):
        for part in "qkv":
            name = f"model.layers.{number}.self_attn.{part}_proj"
            weight = tensors[f"{name}.weight"]
            tensors[f"{name}.bias"] = normal(weight.shape[0], weight.dtype, generator) * 0.1
    keys |= {"use_sliding_window": True, "max_window_layers": 1}


def _to_qwen3(keys: Keys, tensors: Tensors, generator: torch.Generator) -> None:
    """Norms of query and key heads; windows where `layer_types` names them."""
    add_head_norms(keys, tensors, generator)
    types = ["sliding_attention", "full_attention"] * keys["num_hidden_layers"]
    keys |= {"use_sliding_window": True, "layer_types": types[: keys["num_hidden_layers"]]}


def _to_qwen3_moe(keys: Keys, tensors: Tensors, generator: torch.Generator) -> None:
    """Norms of heads, and experts in all layers but the first, each close to the MLP before."""
    add_head_norms(keys, tensors, generator)
    hidden, dtype = keys["hidden_size"], tensors["model.norm.weight"].dtype
    for number in range(1, keys["num_hidden_layers"]):
        mlp = f"model.layers.{number}.mlp"
        router = torch.randn(EXPERTS, hidden, generator=generator) * hidden**-0.5
        tensors[f"{mlp}.gate.weight"] = router.to(dtype)
        for part in ("gate", "up", "down"):
            weight = tensors.pop(f"{mlp}.{part}_proj.weight")
            for expert in range(EXPERTS):
                noise = torch.randn(weight.shape, generator=generator) * weight.float().std()
                name = f"{mlp}.experts.{expert}.{part}_proj.weight"
                tensors[name] = weight + (EXPERT_NOISE * noise).to(dtype)
    keys |= {
        "use_sliding_window": False,
        "num_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "moe_intermediate_size": keys["intermediate_size"],
        "mlp_only_layers": [0],
    }


def _to_gemma2(keys: Keys, tensors: Tensors, generator: torch.Generator) -> None:
    """Norms stored less 1, around attention and MLP; scaled embeddings; softcaps; GELU.

    Embeddings stay as they are, also for a tied head: what is added to them grows with them.
    """
    embedding = tensors["model.embed_tokens.weight"]
    size = float(embedding.float().square().mean().sqrt()) * keys["hidden_size"] ** 0.5
    tensors["model.norm.weight"] -= 1
    for number in range(keys["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        tensors[f"{layer}.input_layernorm.weight"] -= 1
        before_mlp = tensors.pop(f"{layer}.post_attention_layernorm.weight") - 1
        tensors[f"{layer}.pre_feedforward_layernorm.weight"] = before_mlp
        for after in ("post_attention_layernorm", "post_feedforward_layernorm"):
            drawn = normal(keys["hidden_size"], embedding.dtype, generator)
            tensors[f"{layer}.{after}.weight"] = size * (OUTPUT_NORM + 0.1 * drawn) - 1
    keys |= {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": keys["head_dim"],
        "attn_logit_softcapping": 20.0,
        "final_logit_softcapping": 30.0,
    }


def _to_gemma3(keys: Keys, tensors: Tensors, generator: torch.Generator) -> None:
    """As Gemma 2, with norms of heads for one softcap, and angles of their own under windows."""
    _to_gemma2(keys, tensors, generator)
    add_head_norms(keys, tensors, generator, stored_less=1.0)
    keys |= {
        "attn_logit_softcapping": None,
        "sliding_window_pattern": 2,
        "rope_parameters": {
            "full_attention": keys["rope_parameters"],
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        },
    }


def _to_gpt_oss(keys: Keys, tensors: Tensors, generator: torch.Generator) -> None:
    """Sinks, biases, windows in every other layer, YaRN, and experts each close to the MLP before.

    silu(g) is alpha * (g / alpha) * sigmoid(alpha * (g / alpha)), and an up projection with a bias
    of -1 loses the 1 that the gate adds to it.
    """
    for number in range(keys["num_hidden_layers"]):
        attention = f"model.layers.{number}.self_attn"
        sinks = normal(keys["num_attention_heads"], torch.float32, generator)
        tensors[f"{attention}.sinks"] = sinks.to(tensors["model.norm.weight"].dtype)
        for part in "qkvo":
            weight = tensors[f"{attention}.{part}_proj.weight"]
            bias = normal(weight.shape[0], weight.dtype, generator)
            tensors[f"{attention}.{part}_proj.bias"] = bias * 0.05
        _stack_experts(f"model.layers.{number}.mlp", keys["hidden_size"], tensors, generator)
    keys |= {
        "attention_bias": True,
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10_000.0,
            "factor": keys["max_position_embeddings"] / SHORT_TEXT,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": SHORT_TEXT,
        },
    }


def _stack_experts(mlp: str, hidden: int, tensors: Tensors, generator: torch.Generator) -> None:
    """Put a router and stacked experts in place of the three maps of an MLP."""
    maps = [tensors.pop(f"{mlp}.{part}_proj.weight") for part in ("gate", "up", "down")]
    dtype = maps[0].dtype

    def stacked(weight: Tensor) -> Tensor:
        noise = torch.randn(EXPERTS, *weight.shape, generator=generator) * weight.float().std()
        return weight.float() + EXPERT_NOISE * noise

    gate, up, down = (stacked(weight) for weight in maps)
    gate_up = torch.stack((gate / ALPHA, up), dim=2).flatten(1, 2)  # alternating rows
    biases = 0.05 * torch.randn(EXPERTS, gate_up.shape[1], generator=generator)
    biases[:, 1::2] -= 1
    made = {
        "router.weight": torch.randn(EXPERTS, hidden, generator=generator) * hidden**-0.5,
        "router.bias": 0.05 * torch.randn(EXPERTS, generator=generator),
        "experts.gate_up_proj": gate_up.mT,
        "experts.gate_up_proj_bias": biases,
        "experts.down_proj": (down * ALPHA).mT,
        "experts.down_proj_bias": 0.05 * torch.randn(EXPERTS, hidden, generator=generator),
    }
    tensors.update({f"{mlp}.{name}": one.to(dtype).contiguous() for name, one in made.items()})


def _to_longrope(keys: Keys, tensors: Tensors, generator: torch.Generator) -> None:
    """Angles that differ from one head dimension to the next, and between short and long texts."""
    half = keys["head_dim"] // 2
    keys["rope_parameters"] = {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "short_factor": [1.0 + place / half for place in range(half)],
        "long_factor": [1.5 + 3 * place / half for place in range(half)],
        "original_max_position_embeddings": SHORT_TEXT,
    }


def _to_deepseek_v3(keys: Keys, tensors: Tensors, generator: torch.Generator) -> None:
    """Latents that hold the keys and values before, of which heads select theirs, all layers dense.

    Only a part of ROPE numbers turns: the first of a query head, and of the first key head.
    """
    heads, kv_heads = keys["num_attention_heads"], keys["num_key_value_heads"]
    hidden, dim = keys["hidden_size"], keys["head_dim"]
    rank, dtype = 2 * kv_heads * dim, tensors["model.norm.weight"].dtype

    def noisy(weight: Tensor) -> Tensor:
        noise = torch.randn(weight.shape, generator=generator) * 0.02
        return (weight.float() + noise * weight.float().std()).to(dtype).contiguous()

    own = torch.arange(heads)[:, None] // (heads // kv_heads) * dim + torch.arange(dim)
    selected = torch.cat((own, kv_heads * dim + own), dim=1).flatten()  # of a latent, by head
    for number in range(keys["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        attention = f"{layer}.self_attn"
        q, k, v = (tensors.pop(f"{attention}.{part}_proj.weight").float() for part in "qkv")
        by_head = q.view(heads, dim, hidden)
        latents = torch.cat((k, v, k[:ROPE]))
        factors = tensors[f"{layer}.input_layernorm.weight"].float()
        made = {
            "q_a_proj": torch.eye(hidden),
            "q_b_proj": torch.cat((by_head, by_head[:, :ROPE]), dim=1).flatten(0, 1),
            "kv_a_proj_with_mqa": latents,
            "kv_b_proj": torch.eye(rank)[selected],
        }
        tensors.update({f"{attention}.{name}.weight": noisy(one) for name, one in made.items()})
        # As large as what the norms divide by, so that latents keep their size.
        sizes = {"q": factors, "kv": (latents[:rank] * factors).norm(dim=1)}
        for part, size in sizes.items():
            mean = size.square().mean().sqrt().expand(hidden if part == "q" else rank)
            tensors[f"{attention}.{part}_a_layernorm.weight"] = mean.to(dtype).contiguous()
    keys |= {
        "num_key_value_heads": heads,
        "head_dim": ROPE,
        "qk_rope_head_dim": ROPE,
        "qk_nope_head_dim": dim,
        "v_head_dim": dim,
        "kv_lora_rank": rank,
        "q_lora_rank": hidden,
        "first_k_dense_replace": keys["num_hidden_layers"],
        "num_nextn_predict_layers": 0,
    }


_CHANGES: Mapping[str, tuple[str, Callable[[Keys, Tensors, torch.Generator], None]]] = {
    "mistral": ("MistralForCausalLM", _to_mistral),
    "qwen2": ("Qwen2ForCausalLM", _to_qwen2),
    "qwen3": ("Qwen3ForCausalLM", _to_qwen3),
    "qwen3_moe": ("Qwen3MoeForCausalLM", _to_qwen3_moe),
    "gemma2": ("Gemma2ForCausalLM", _to_gemma2),
    "gemma3_text": ("Gemma3ForCausalLM", _to_gemma3),
    "gpt_oss": ("GptOssForCausalLM", _to_gpt_oss),
    **RECURRENT_CHANGES,
    LATENT: ("DeepseekV3ForCausalLM", _to_deepseek_v3),
    LONGROPE: ("LlamaForCausalLM", _to_longrope),
}
FAMILIES = (LLAMA, *_CHANGES)
MIXTURES = ("qwen3_moe", "gpt_oss")
"""Families with experts: runs compare those of each token too."""
THROUGH_TRANSFORMERS = (LLAMA, LONGROPE, "gemma3_text", *MIXTURES)
"""Families that runs compute with transformers' modules as well."""
