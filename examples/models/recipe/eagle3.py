"""The EAGLE-3 head: one layer over the target's features, in the published names."""

from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from recipe.parts import Attention, Mlp, Norm, head_config, read_weights, write_head

DRAFT_VOCAB_SIZE = 512
FEATURE_LAYERS = (1, 3, 6)  # outputs of these layers (0 is the first) are the target's features

# Letters: B rows of text, T positions, H hidden size, D draft vocabulary.


class Layer(nn.Module):
    """The parts of the one decoder layer."""

    def __init__(self, hidden: int, intermediate: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.hidden_norm = Norm(hidden)
        self.input_layernorm = Norm(hidden)
        self.post_attention_layernorm = Norm(hidden)
        self.self_attn = Attention(2 * hidden, hidden, heads, kv_heads)
        self.mlp = Mlp(hidden, intermediate)


class Eagle3(nn.Module):
    """A draft cell at position i reads (features of token i, token i+1) and guesses token i+2.

    `unroll` runs the cell several times over the same row of text: step 0 reads the target's
    features, each later step reads the head's own output of the step before and one token further.
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

    def target_ids(self) -> Tensor:
        """Give the target id of every draft id, [D] int64."""
        return self.d2t + torch.arange(len(self.d2t))

    def choose_vocabulary(self, counts: Tensor) -> None:
        """Keep the most frequent target ids; `counts` is [target vocabulary]."""
        chosen = counts.topk(DRAFT_VOCAB_SIZE).indices.sort().values
        self.d2t.copy_(chosen - torch.arange(DRAFT_VOCAB_SIZE))
        self.t2d.zero_()
        self.t2d[chosen] = True

    def logits(self, hidden: Tensor) -> Tensor:
        """Score the draft vocabulary: [..., H] to [..., D]. Only here is the output normed."""
        out: Tensor = self.lm_head(self.norm(hidden))
        return out

    def unroll(self, features: Tensor, embedded: list[Tensor]) -> list[Tensor]:
        """Run len(embedded) steps; features [B, T, 3H], embedded[s] = tokens i+1+s, [B, T, H].

        Returns the hidden output [B, T, H] of each step; step s at row i guesses token i+2+s.
        """
        layer = self.midlayer
        hidden = self.fc(features)
        steps: list[tuple[Tensor, Tensor]] = []
        outputs = []
        for token in embedded:
            x = torch.cat([layer.input_layernorm(token), layer.hidden_norm(hidden)], dim=-1)
            hidden = hidden + layer.self_attn(x, steps)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
            outputs.append(hidden)
        return outputs


def features(target: LlamaForCausalLM, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Run the target over ids [B, T]: its features [B, T, 3H] and logits [B, T, vocabulary]."""
    out = target(input_ids=ids, use_cache=False, output_hidden_states=True)
    # hidden_states[0] is the embedding, so the output of layer i is at i + 1
    return torch.cat([out.hidden_states[i + 1] for i in FEATURE_LAYERS], dim=-1), out.logits


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
    config = head_config(target) | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": DRAFT_VOCAB_SIZE,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": list(FEATURE_LAYERS),
            "use_aux_hidden_state": True,
        },
    }
    write_head(head, config, folder)


def load(folder: Path, target: LlamaForCausalLM) -> Eagle3:
    """Read a head back in float32; every weight must be there and none may be left over."""
    head = fresh(target)
    read_weights(head, folder)
    return head.eval()
