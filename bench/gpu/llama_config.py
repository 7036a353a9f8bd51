"""The config.json of a Llama of a given shape, for checkpoints with random weights."""

from typing import Protocol


class LlamaShape(Protocol):
    """Sizes of a Llama."""

    @property
    def hidden(self) -> int:
        """Width of a hidden state."""

    @property
    def inner(self) -> int:
        """Width between the maps of an MLP."""

    @property
    def heads(self) -> int:
        """Heads of queries."""

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""

    @property
    def head_dim(self) -> int:
        """Width of a head."""

    @property
    def vocab(self) -> int:
        """Tokens."""


def llama_config(shape: LlamaShape, layers: int) -> dict[str, object]:
    """Return the keys of Hugging Face for a shape, in bfloat16 and for 8,192 positions."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
