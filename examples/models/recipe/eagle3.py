"""The EAGLE-3 head: one layer over the target's features, in the published names."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import embedding, rms_norm, silu
from transformers import LlamaForCausalLM

DRAFT_VOCAB_SIZE = 512
FEATURE_LAYERS = (1, 3, 6)  # outputs of these layers (0 is the first) are the target's features

# Letters: B rows of text, T positions, H hidden size, D draft vocabulary.


class Attention(nn.Module):
    """The four projections; queries, keys and values read two vectors side by side."""

    def __init__(self, hidden: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        head_size = hidden // heads
        self.heads, self.kv_heads, self.head_size = heads, kv_heads, head_size
        self.q_proj = nn.Linear(2 * hidden, hidden, bias=False)
        self.k_proj = nn.Linear(2 * hidden, kv_heads * head_size, bias=False)
        self.v_proj = nn.Linear(2 * hidden, kv_heads * head_size, bias=False)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)


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
        return rms_norm(x, self.weight.shape, self.weight, 1e-5)


class Layer(nn.Module):
    """The parts of the one decoder layer."""

    def __init__(self, hidden: int, intermediate: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.hidden_norm = Norm(hidden)
        self.input_layernorm = Norm(hidden)
        self.post_attention_layernorm = Norm(hidden)
        self.self_attn = Attention(hidden, heads, kv_heads)
        self.mlp = Mlp(hidden, intermediate)


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Turn [B, heads, T, head_size] by its positions [T], the halves of a head as pairs."""
    half = x.shape[-1] // 2
    rates = theta ** (-torch.arange(half, dtype=torch.float32) / half)
    angles = positions[:, None].float() * rates  # [T, half]
    cos, sin = angles.cos(), angles.sin()
    one, two = x[..., :half], x[..., half:]
    return torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1)


class Eagle3(nn.Module):
    """A draft cell at position i reads (features of token i, token i+1) and guesses token i+2.

    `unroll` runs the cell several times over the same row of text: step 0 reads the target's
    features, each later step reads the head's own output of the step before and one token further.
    A later step sees all step-0 keys up to its row and, of the later steps, only its own chain.
    """

    def __init__(self, hidden: int, intermediate: int, heads: int, kv_heads: int, vocab: int):
        super().__init__()
        self.fc = nn.Linear(3 * hidden, hidden, bias=False)
        self.midlayer = Layer(hidden, intermediate, heads, kv_heads)
        self.norm = Norm(hidden)
        self.lm_head = nn.Linear(hidden, DRAFT_VOCAB_SIZE, bias=False)
        self.d2t: Tensor  # [D] int64: target id minus draft id
        self.t2d: Tensor  # [target vocabulary] bool: has a draft id
        self.register_buffer("d2t", torch.zeros(DRAFT_VOCAB_SIZE, dtype=torch.int64))
        self.register_buffer("t2d", torch.zeros(vocab, dtype=torch.bool))
        self.theta = 10000.0

    def target_ids(self) -> Tensor:
        """Give the target id of every draft id, [D] int64."""
        return self.d2t + torch.arange(len(self.d2t))

    def choose_vocabulary(self, counts: Tensor) -> None:
        """Keep the most frequent target ids; `counts` is [target vocabulary]."""
        chosen = counts.topk(DRAFT_VOCAB_SIZE).indices.sort().values
        self.d2t.copy_(chosen - torch.arange(DRAFT_VOCAB_SIZE))
        self.t2d.zero_()
        self.t2d[chosen] = True

    def project(self, hidden: Tensor, embedded: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        """Make queries, keys and values, [B, heads, T, head_size], keys already repeated."""
        layer, attention = self.midlayer, self.midlayer.self_attn
        x = torch.cat([layer.input_layernorm(embedded), layer.hidden_norm(hidden)], dim=-1)
        shape = (*x.shape[:2], -1, attention.head_size)
        q, k, v = (
            p(x).view(shape).transpose(1, 2)
            for p in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        group = attention.heads // attention.kv_heads
        k = rotate(k, positions, self.theta).repeat_interleave(group, dim=1)
        return rotate(q, positions, self.theta), k, v.repeat_interleave(group, dim=1)

    def finish(self, hidden: Tensor, mixed: Tensor) -> Tensor:
        """Add attention's result [B, heads, T, head_size] and the feed-forward part."""
        layer = self.midlayer
        hidden = hidden + layer.self_attn.o_proj(mixed.transpose(1, 2).flatten(2))
        out: Tensor = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """Score the draft vocabulary: [..., H] to [..., D]. Only here is the output normed."""
        out: Tensor = self.lm_head(self.norm(hidden))
        return out

    def unroll(self, features: Tensor, embedded: list[Tensor]) -> list[Tensor]:
        """Run len(embedded) steps; features [B, T, 3H], embedded[s] = tokens i+1+s, [B, T, H].

        Returns the hidden output [B, T, H] of each step; step s at row i guesses token i+2+s.
        """
        hidden = self.fc(features)
        rows = torch.arange(features.shape[1])
        causal = rows[:, None] >= rows[None, :]  # [T, T]
        keys: list[Tensor] = []  # one per step, [B, heads, T, head_size]
        values: list[Tensor] = []
        outputs = []
        for step, inputs in enumerate(embedded):
            q, k, v = self.project(hidden, inputs, rows + step)
            keys.append(k)
            values.append(v)
            scale = q.shape[-1] ** -0.5
            scores = (q @ keys[0].transpose(-1, -2) * scale).masked_fill(~causal, -torch.inf)
            own = [(q * key).sum(-1, keepdim=True) * scale for key in keys[1:]]
            weights = torch.cat([scores, *own], dim=-1).softmax(-1)
            mixed = weights[..., : len(rows)] @ values[0]
            for at, value in enumerate(values[1:], start=len(rows)):
                mixed = mixed + weights[..., at : at + 1] * value
            hidden = self.finish(hidden, mixed)
            outputs.append(hidden)
        return outputs


def features(target: LlamaForCausalLM, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Run the target over ids [B, T]: its features [B, T, 3H] and logits [B, T, vocabulary]."""
    out = target(input_ids=ids, use_cache=False, output_hidden_states=True)
    # hidden_states[0] is the embedding, so the output of layer i is at i + 1
    return torch.cat([out.hidden_states[i + 1] for i in FEATURE_LAYERS], dim=-1), out.logits


def embed(target: LlamaForCausalLM, ids: Tensor) -> Tensor:
    """Look ids up in the target's embedding, which the head shares."""
    return embedding(ids, target.model.embed_tokens.weight)


def fresh(target: LlamaForCausalLM) -> Eagle3:
    """Make an untrained head for a target."""
    c = target.config
    return Eagle3(
        c.hidden_size,
        c.intermediate_size,
        c.num_attention_heads,
        c.num_key_value_heads,
        c.vocab_size,
    )


def save(head: Eagle3, target: LlamaForCausalLM, folder: Path) -> None:
    """Write the head as published heads are: bfloat16 weights, int64 offsets, a bool mask."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        name: (t.to(torch.bfloat16) if t.is_floating_point() else t).contiguous()
        for name, t in head.state_dict().items()
    }
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    c = target.config
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "attention_bias": False,
        "bos_token_id": c.bos_token_id,
        "draft_vocab_size": DRAFT_VOCAB_SIZE,
        "dtype": "bfloat16",
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": list(FEATURE_LAYERS),
            "use_aux_hidden_state": True,
        },
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
        "rms_norm_eps": 1e-5,
        "rope_theta": head.theta,
        "tie_word_embeddings": False,
        "vocab_size": c.vocab_size,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def load(folder: Path, target: LlamaForCausalLM) -> Eagle3:
    """Read a head back in float32; every weight must be there and none may be left over."""
    head = fresh(target)
    state = load_file(folder / "model.safetensors")
    head.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in state.items()})
    return head.eval()
