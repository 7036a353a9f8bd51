"""The parts that heads are made of, the keys their configs share, and how they are stored."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import embedding, rms_norm, silu
from transformers import LlamaForCausalLM

ROPE_THETA = 10000.0
NORM_EPS = 1e-5

# Letters: B rows of text, T positions, H hidden size.


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Turn [B, heads, T, head_size] by its positions [T], the halves of a head as pairs."""
    half = x.shape[-1] // 2
    rates = ROPE_THETA ** (-torch.arange(half, dtype=torch.float32) / half)
    angles = positions[:, None].float() * rates  # [T, half]
    cos, sin = angles.cos(), angles.sin()
    one, two = x[..., :half], x[..., half:]
    return torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1)


class Attention(nn.Module):
    """Grouped attention of a head that is unrolled several steps over the same rows of text.

    Step 0 is causal. A later step sees all step-0 keys up to its row and, of the later steps, only
    its own chain. Step s at row i has rotary position i + s.
    """

    def __init__(self, inputs: int, hidden: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_size = heads, kv_heads, hidden // heads
        self.q_proj = nn.Linear(inputs, hidden, bias=False)
        self.k_proj = nn.Linear(inputs, kv_heads * self.head_size, bias=False)
        self.v_proj = nn.Linear(inputs, kv_heads * self.head_size, bias=False)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: Tensor, steps: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Map [B, T, inputs] to [B, T, H].

        `steps` holds keys and values, [B, heads, T, head_size], of the steps before, and gets
        those of this one.
        """
        rows = torch.arange(x.shape[1])
        shape = (*x.shape[:2], -1, self.head_size)
        q, k, v = (
            p(x).view(shape).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        group = self.heads // self.kv_heads
        q = rotate(q, rows + len(steps))
        k = rotate(k, rows + len(steps)).repeat_interleave(group, dim=1)
        steps.append((k, v.repeat_interleave(group, dim=1)))
        (keys, values), *chain = steps
        causal = rows[:, None] >= rows[None, :]  # [T, T]
        scale = q.shape[-1] ** -0.5
        scores = (q @ keys.transpose(-1, -2) * scale).masked_fill(~causal, -torch.inf)
        own = [(q * key).sum(-1, keepdim=True) * scale for key, _ in chain]
        weights = torch.cat([scores, *own], dim=-1).softmax(-1)
        mixed = weights[..., : len(rows)] @ values
        for at, (_, value) in enumerate(chain, start=len(rows)):
            mixed = mixed + weights[..., at : at + 1] * value
        out: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return out


class Mlp(nn.Module):
    """Llama's gated feed-forward part."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., H] to [..., H]."""
        out: Tensor = self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Norm(nn.Module):
    """RMS norm with a learnt scale."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., H] to [..., H]."""
        return rms_norm(x, self.weight.shape, self.weight, NORM_EPS)


def embed(target: LlamaForCausalLM, ids: Tensor) -> Tensor:
    """Look ids up in the target's embedding, which the heads share."""
    return embedding(ids, target.model.embed_tokens.weight)


def head_config(target: LlamaForCausalLM) -> dict[str, object]:
    """Give the keys of config.json that say the same for every head of a target."""
    c = target.config
    return {
        "attention_bias": False,
        "bos_token_id": c.bos_token_id,
        "dtype": "bfloat16",
        "eos_token_id": c.eos_token_id,
        "head_dim": c.hidden_size // c.num_attention_heads,
        "hidden_act": "silu",
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "max_position_embeddings": c.max_position_embeddings,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": c.num_attention_heads,
        "num_hidden_layers": 1,
        "num_key_value_heads": c.num_key_value_heads,
        "rms_norm_eps": NORM_EPS,
        "rope_theta": ROPE_THETA,
        "tie_word_embeddings": False,
        "vocab_size": c.vocab_size,
    }


def write_head(head: nn.Module, config: Mapping[str, object], folder: Path) -> None:
    """Write the weights in bfloat16, other tensors as they are, and config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        name: (t.to(torch.bfloat16) if t.is_floating_point() else t).contiguous()
        for name, t in head.state_dict().items()
    }
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    (folder / "config.json").write_text(json.dumps(dict(sorted(config.items())), indent=2) + "\n")


def read_weights(head: nn.Module, folder: Path) -> None:
    """Read the weights back in float32; every one must be there and none may be left over."""
    state = load_file(folder / "model.safetensors")
    head.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in state.items()})
