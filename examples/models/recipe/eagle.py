"""The EAGLE head, first and second generation alike: it foresees the target's last hidden state."""

from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from recipe.parts import Attention, Mlp, Norm, head_config, read_weights, write_head

# Letters: B rows of text, T positions, H hidden size.


class Layer(nn.Module):
    """The parts of the one decoder layer; there is no norm before attention."""

    def __init__(self, hidden: int, intermediate: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.post_attention_layernorm = Norm(hidden)
        self.self_attn = Attention(hidden, hidden, heads, kv_heads)
        self.mlp = Mlp(hidden, intermediate)


class Eagle(nn.Module):
    """A draft cell at position i reads (feature of token i, token i+1), foresees feature i+1.

    A feature is the target's last hidden state after the final norm, so the target's own head
    scores the output. `unroll` runs the cell several times over the same row of text: step 0 reads
    the target's features, each later step the head's own output and one token further.
    """

    def __init__(self, hidden: int, intermediate: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * hidden, hidden, bias=True)
        self.layers = nn.ModuleList([Layer(hidden, intermediate, heads, kv_heads)])

    def unroll(self, features: Tensor, embedded: list[Tensor]) -> list[Tensor]:
        """Run len(embedded) steps; features [B, T, H], embedded[s] = tokens i+1+s, [B, T, H].

        Returns the output [B, T, H] of each step; step s at row i foresees feature i+1+s.
        """
        layer = self.layers[0]
        steps: list[tuple[Tensor, Tensor]] = []
        outputs = [features]
        for token in embedded:
            x = self.fc(torch.cat([token, outputs[-1]], dim=-1))
            x = x + layer.self_attn(x, steps)
            outputs.append(x + layer.mlp(layer.post_attention_layernorm(x)))
        return outputs[1:]


def features(target: LlamaForCausalLM, ids: Tensor) -> Tensor:
    """Run the target over ids [B, T]: its last hidden state after the final norm, [B, T, H]."""
    out: Tensor = target.model(input_ids=ids, use_cache=False).last_hidden_state
    return out


def fresh(target: LlamaForCausalLM) -> Eagle:
    """Make an untrained head for a target."""
    c = target.config
    return Eagle(c.hidden_size, c.intermediate_size, c.num_attention_heads, c.num_key_value_heads)


def save(head: Eagle, target: LlamaForCausalLM, folder: Path) -> None:
    """Write the head in bfloat16; embedding and scoring head are the target's and not stored."""
    config = head_config(target) | {"architectures": ["LlamaForCausalLMEagle"], "bias": True}
    write_head(head, config, folder)


def load(folder: Path, target: LlamaForCausalLM) -> Eagle:
    """Read a head back in float32; every weight must be there and none may be left over."""
    head = fresh(target)
    read_weights(head, folder)
    return head.eval()
