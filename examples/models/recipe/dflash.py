"""The DFlash draft: two layers that fill a block of tokens at once, in the published names."""

from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from recipe import vocabulary
from recipe.eagle3 import FEATURE_LAYERS
from recipe.parts import Mlp, Norm, embed, head_config, read_weights, rotate, write_head

BLOCK = 16  # rows: the bonus token, and masks that each become one drafted token
LAYERS = 2
MASK_ID = vocabulary.END_OF_TEXT_ID

# Letters: B rows of text, T positions, A blocks per row of text, H hidden size.


class Attention(nn.Module):
    """Rows of blocks look at the text before their block, and at all of their block."""

    def __init__(self, hidden: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_size = heads, kv_heads, hidden // heads
        self.q_proj = nn.Linear(hidden, hidden, bias=False)
        self.k_proj = nn.Linear(hidden, kv_heads * self.head_size, bias=False)
        self.v_proj = nn.Linear(hidden, kv_heads * self.head_size, bias=False)
        self.o_proj = nn.Linear(hidden, hidden, bias=False)
        self.q_norm = Norm(self.head_size)
        self.k_norm = Norm(self.head_size)

    def forward(self, context: Tensor, x: Tensor, anchors: Tensor) -> Tensor:
        """Map rows [B, A * BLOCK, H] to as many.

        Args:
            context: [B, T, H], what is known of the text.
            anchors: [A], ascending positions of the blocks' first rows.
        """
        known = torch.arange(context.shape[1])
        places = (anchors[:, None] + torch.arange(BLOCK)).flatten()
        block = torch.arange(len(anchors)).repeat_interleave(BLOCK)
        seen = torch.cat([known < anchors[block][:, None], block[:, None] == block], dim=1)
        keyed = torch.cat([context, x], dim=1)
        q = self._split(self.q_proj(x))
        k = self._split(self.k_proj(keyed))
        v = self._split(self.v_proj(keyed))
        q = rotate(self.q_norm(q), places)
        k = rotate(self.k_norm(k), torch.cat([known, places]))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, seen, enable_gqa=True)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return out

    def _split(self, rows: Tensor) -> Tensor:
        """From [B, T, heads * head_size] to [B, heads, T, head_size]."""
        return rows.view(*rows.shape[:2], -1, self.head_size).transpose(1, 2)


class Layer(nn.Module):
    """The parts of one decoder layer."""

    def __init__(self, hidden: int, intermediate: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.input_layernorm = Norm(hidden)
        self.post_attention_layernorm = Norm(hidden)
        self.self_attn = Attention(hidden, heads, kv_heads)
        self.mlp = Mlp(hidden, intermediate)


class DFlash(nn.Module):
    """Row r of a block, at the position r after its first, guesses the token at its own position.

    The first row has the token there, the others that of the mask. Embedding and scores are the
    target's.
    """

    def __init__(self, hidden: int, intermediate: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.fc = nn.Linear(len(FEATURE_LAYERS) * hidden, hidden, bias=False)
        self.hidden_norm = Norm(hidden)
        self.layers = nn.ModuleList(
            [Layer(hidden, intermediate, heads, kv_heads) for _ in range(LAYERS)]
        )
        self.norm = Norm(hidden)

    def blocks(
        self, target: LlamaForCausalLM, features: Tensor, ids: Tensor, anchors: Tensor
    ) -> Tensor:
        """Compute the drafting rows [B, A, BLOCK - 1, H] of blocks that begin at `anchors` [A].

        Args:
            features: [B, T, 3H], of the text; those before its first row count for a block.
            ids: [B, A], the tokens at the anchors.
        """
        rows, count = ids.shape
        context = self.hidden_norm(self.fc(features))
        tokens = torch.full((rows, count, BLOCK), MASK_ID)
        tokens[:, :, 0] = ids
        x = embed(target, tokens.flatten(1))
        for layer in self.layers:
            x = x + layer.self_attn(context, layer.input_layernorm(x), anchors)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        normed: Tensor = self.norm(x)
        return normed.view(rows, count, BLOCK, -1)[:, :, 1:]


def fresh(target: LlamaForCausalLM) -> DFlash:
    """Make an untrained draft for a target."""
    c = target.config
    return DFlash(c.hidden_size, c.intermediate_size, c.num_attention_heads, c.num_key_value_heads)


def save(draft: DFlash, target: LlamaForCausalLM, folder: Path) -> None:
    """Write the draft as z-lab's are."""
    config = head_config(target) | {
        "architectures": ["DFlashDraftModel"],
        "block_size": BLOCK,
        "dflash_config": {"mask_token_id": MASK_ID, "target_layer_ids": list(FEATURE_LAYERS)},
        "model_type": "qwen3",
        "num_hidden_layers": LAYERS,
    }
    write_head(draft, config, folder)


def load(folder: Path, target: LlamaForCausalLM) -> DFlash:
    """Read a draft back in float32; every weight must be there and none may be left over."""
    draft = fresh(target)
    read_weights(draft, folder)
    return draft.eval()
