"""Tiny checkpoints in Hugging Face's layout, and texts laid out over shuffled pages."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from checks.lossless.poison import poison
from specdecode_engine.model.kv.kv_cache import KVCache
from specdecode_engine.model.kv.kv_views import PagedView
from specdecode_engine.model.target.config import LlamaConfig
from specdecode_kernels import TORCH, AttentionMetadata, Backend

torch.set_num_threads(1)

CONFIG: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 31,
    "hidden_size": 12,
    "intermediate_size": 20,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}

Tensors = dict[str, Tensor]


def layer_tensors(prefix: str, attention_input: int) -> Tensors:
    """Draw one decoder layer of CONFIG's sizes."""
    shapes = {
        "self_attn.q_proj": (24, attention_input),
        "self_attn.k_proj": (12, attention_input),
        "self_attn.v_proj": (12, attention_input),
        "self_attn.o_proj": (12, 24),
        "mlp.gate_proj": (20, 12),
        "mlp.up_proj": (20, 12),
        "mlp.down_proj": (12, 20),
        "input_layernorm": (12,),
        "post_attention_layernorm": (12,),
    }
    return {f"{prefix}.{name}.weight": torch.randn(shape) * 0.5 for name, shape in shapes.items()}


@pytest.fixture
def config() -> dict[str, object]:
    """A config.json of a tiny Llama, to be changed at will."""
    return dict(CONFIG)


@pytest.fixture
def tensors() -> Tensors:
    """The tensors that go with `config`, to be changed at will."""
    torch.manual_seed(0)
    layers = [layer_tensors(f"model.layers.{number}", 12) for number in range(4)]
    return {
        "model.embed_tokens.weight": torch.randn(31, 12),
        **{name: tensor for layer in layers for name, tensor in layer.items()},
        "model.norm.weight": torch.randn(12),
        "lm_head.weight": torch.randn(31, 12),
    }


@pytest.fixture
def eagle3_tensors() -> Tensors:
    """The tensors of a head for `config`'s model, in published names."""
    torch.manual_seed(1)
    targets = torch.tensor([2, 3, 5, 8, 13, 21, 30])
    marked = torch.zeros(31, dtype=torch.bool)
    marked[targets] = True
    return {
        "fc.weight": torch.randn(12, 36) * 0.3,
        **layer_tensors("midlayer", 24),
        "midlayer.hidden_norm.weight": torch.randn(12),
        "norm.weight": torch.randn(12),
        "lm_head.weight": torch.randn(7, 12),
        "d2t": targets - torch.arange(7),
        "t2d": marked,
    }


@pytest.fixture
def eagle1_tensors() -> Tensors:
    """The tensors of an EAGLE-1 head for `config`'s model, in published names."""
    torch.manual_seed(2)
    layer = layer_tensors("layers.0", 12)
    del layer["layers.0.input_layernorm.weight"]
    return {"fc.weight": torch.randn(12, 24) * 0.3, "fc.bias": torch.randn(12), **layer}


Write = Callable[[Path, dict[str, object], Tensors], Path]


@pytest.fixture
def write() -> Write:
    """Write a folder of config.json and model.safetensors."""

    def write(folder: Path, config: dict[str, object], tensors: Tensors) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        save_file(tensors, folder / "model.safetensors")
        return folder

    return write


@dataclass(frozen=True)
class Texts:
    """Several texts in one poisoned pool, each over pages of its own in random order."""

    pool: KVCache
    pages: Tensor  # [texts, pages] i64

    @classmethod
    def make(
        cls,
        config: LlamaConfig,
        texts: int,
        longest: int,
        page_size: int,
        layers: int | None = None,
        dtype: torch.dtype = torch.float32,
        ops: Backend = TORCH,
    ) -> "Texts":
        each = -(-longest // page_size)
        pool = KVCache(
            config.decoder.layer_map(layers or config.num_hidden_layers),
            1 + texts * each,
            page_size,
            dtype,
            torch.device("cpu"),
            ops=ops,
        )
        poison(pool)
        return cls(pool, (torch.randperm(texts * each) + 1).view(texts, each))

    def view(self, *spans: tuple[int, int, int]) -> tuple[Tensor, PagedView]:
        """Lay out (text, start, end) spans; return their positions and the view."""
        size = self.pool.page_size
        positions = torch.cat([torch.arange(start, end) for _, start, end in spans])
        owners = torch.tensor(
            [text for text, start, end in spans for _ in range(start, end)],
            dtype=torch.int64,
        )
        rows = self.pages[owners, positions // size] * size + positions % size
        layout = AttentionMetadata(
            page_table=self.pages[[text for text, _, _ in spans]],
            page_size=size,
            qo_lens=tuple(end - start for _, start, end in spans),
            kv_lens=positions + 1,
            max_kv_len=max(end for _, _, end in spans),
        )
        return positions, PagedView(self.pool, rows, layout)

    def prefix(self, lengths: list[int]) -> AttentionMetadata:
        """Lay out one row per text that sees the text's first rows."""
        return AttentionMetadata(
            self.pages,
            self.pool.page_size,
            (1,) * len(lengths),
            torch.tensor(lengths),
            max(lengths),
        )


@pytest.fixture
def texts() -> type[Texts]:
    """The class of texts over shuffled pages."""
    return Texts
