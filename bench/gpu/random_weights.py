"""Checkpoints that lie nowhere: a config.json, and random tensors made where they are needed."""

import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Generator, Tensor

from bench.gpu.llama_config import llama_config
from bench.gpu.scale import MixtureSize, ModelSize
from specdecode_engine.model.checkpoint.checkpoint import Part, Shape, StoredTensor

FIRST_LAYER = "model.layers.0."
INTO_RESIDUAL = ("o_proj.weight", "down_proj.weight")


class RandomStore:
    """Tensors by name: the same name is the same tensor, in target and draft alike.

    What layers after the first write into the residual stream is scaled by epsilon, so that a
    draft of the first layer alone agrees with the target as much as epsilon is small.

    Args:
        epsilon: 0 agrees always.
        seed: another one makes another pair.
    """

    def __init__(self, epsilon: float, seed: int = 0) -> None:
        self._epsilon = epsilon
        self._seed = seed
        self._shapes: Mapping[str, Shape] = {}

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """What was asked for so far; stored nowhere."""
        nowhere = Path("random")
        return {n: StoredTensor(nowhere, s, torch.bfloat16) for n, s in self._shapes.items()}

    def check(self, expected: Mapping[str, Shape], optional: Mapping[str, Shape]) -> None:
        """Take note of what is expected: that will be there, and nothing optional."""
        self._shapes = dict(expected)

    def read(self, name: str, into: Tensor, part: Part = ()) -> None:
        """Draw a tensor in place; a part of it is cut from the whole."""
        if part:
            whole = into.new_empty(self._shapes[name])
            self.read(name, whole)
            into.copy_(whole[part])
            return
        if into.ndim == 1:
            into.fill_(1)
            return
        generator = Generator(into.device)
        generator.manual_seed(zlib.crc32(name.encode()) + self._seed)
        into.normal_(generator=generator).mul_(self._scale(name, into.shape))

    def get(self, name: str) -> Tensor:
        """Draw a tensor on the host."""
        drawn = torch.empty(self._shapes[name], dtype=torch.bfloat16)
        self.read(name, drawn)
        return drawn

    def _scale(self, name: str, shape: Shape) -> float:
        """Keep the size of what a matrix is multiplied with; an embedding is the size itself."""
        if "embed_tokens" in name:
            return 1.0
        is_scaled = name.endswith(INTO_RESIDUAL) and not name.startswith(FIRST_LAYER)
        return float(shape[1] ** -0.5) * (self._epsilon if is_scaled else 1.0)


def opener(epsilon: float) -> Callable[[Path], RandomStore]:
    """Answer what `build_core` opens folders with."""
    return lambda folder: RandomStore(epsilon)


def write_configs(folder: Path, size: ModelSize) -> tuple[Path, Path]:
    """Write the config.json of target and draft; return their folders."""
    folders = (folder / "target", folder / "draft")
    for one, layers in zip(folders, (size.layers, 1), strict=True):
        one.mkdir(parents=True, exist_ok=True)
        (one / "config.json").write_text(json.dumps(hf_keys(size, layers)))
    return folders


def write_mixture(folder: Path, size: ModelSize, mixture: MixtureSize) -> Path:
    """Write the config.json of a Qwen3-MoE; return its folder."""
    keys = hf_keys(size, size.layers) | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": mixture.experts,
        "num_experts_per_tok": mixture.top_k,
        "moe_intermediate_size": mixture.inner,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(keys))
    return folder


def hf_keys(size: ModelSize, layers: int) -> dict[str, object]:
    """Return a size under Hugging Face's names."""
    return {
        **llama_config(size, layers),
        "max_position_embeddings": max(size.context, 8192),
        "torch_dtype": size.dtype,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
