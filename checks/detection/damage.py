"""Damaged EAGLE-3 heads that nothing refuses: in their files, or in how they are computed."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specdecode_engine.model.drafts.eagle import Eagle3Head
from specdecode_engine.model.kv.kv_views import KVView, PagedView
from specdecode_engine.model.layers.layers import Norm

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
ATTENTION = "midlayer.self_attn"
NORMS = ("midlayer.hidden_norm", "midlayer.input_layernorm", "midlayer.post_attention_layernorm")

Tensors = dict[str, Tensor]
Config = dict[str, object]
Damage = Callable[[Tensors, Config], None]


def permute_fc(tensors: Tensors, config: Config) -> None:
    """Read the aux hidden states in another order of layers."""
    low, middle, high = tensors["fc.weight"].chunk(3, dim=1)
    tensors["fc.weight"] = torch.cat((high, low, middle), dim=1)


def shift_aux_layers(tensors: Tensors, config: Config) -> None:
    """Count layers from 1 instead of 0."""
    eagle = dict(config["eagle_config"])  # type: ignore[call-overload]
    config["eagle_config"] = eagle | {LAYER_IDS: [number + 1 for number in eagle[LAYER_IDS]]}


def lose_one_plus(tensors: Tensors, config: Config) -> None:
    """Read norms of 1 + weight as norms of weight."""
    for name in (*NORMS, "norm"):
        tensors[f"{name}.weight"] = tensors[f"{name}.weight"] - 1


def interleave_rope(tensors: Tensors, config: Config) -> None:
    """Store queries and keys for rotation of neighbours, which are rotated by halves."""
    for part in ("q_proj", "k_proj"):
        weight = tensors[f"{ATTENTION}.{part}.weight"]
        heads = weight.view(-1, 2, 16, weight.shape[1])
        tensors[f"{ATTENTION}.{part}.weight"] = heads.transpose(1, 2).reshape(weight.shape)


def damage_d2t(tensors: Tensors, config: Config) -> None:
    """Lead draft ids to the ids of other tokens."""
    own = torch.arange(len(tensors["d2t"]))
    ids = (own + tensors["d2t"]).roll(1)
    tensors["d2t"] = ids - own


def damage_embedding(tensors: Tensors, config: Config) -> None:
    """Use the embedding of a vocabulary in another order."""
    target = load_file(Path(__file__).parents[2] / "examples/models/target/model.safetensors")
    embedding = target["model.embed_tokens.weight"]
    order = torch.randperm(len(embedding), generator=torch.Generator().manual_seed(1))
    tensors["embed_tokens.weight"] = embedding[order]


def swap_keys_and_values(tensors: Tensors, config: Config) -> None:
    """Store keys as values and values as keys."""
    keys, values = f"{ATTENTION}.k_proj.weight", f"{ATTENTION}.v_proj.weight"
    tensors[keys], tensors[values] = tensors[values], tensors[keys]


def randomize(tensors: Tensors, config: Config) -> None:
    """Have weights that were never read."""
    generator = torch.Generator().manual_seed(2)
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.ndim == 2:
            noise = torch.randn(tensor.shape, generator=generator)
            tensors[name] = (noise * tensor.float().std()).to(tensor.dtype)


class UnnormedHead(Eagle3Head):
    """Leaves out the norms of the layer's inputs and of the output."""

    def forward(
        self, ids: Tensor, hidden: Tensor, positions: Tensor, kv: KVView
    ) -> tuple[Tensor, Tensor]:
        nothing = _NoNorm(self.norm.ops, self.norm.weight, self.norm.eps)
        plain = replace(self, token_norm=nothing, hidden_norm=nothing, norm=nothing)
        return Eagle3Head.forward(plain, ids, hidden, positions, kv)

    def store_kv(self, ids: Tensor, hidden: Tensor, positions: Tensor, kv: PagedView) -> None:
        self.forward(ids, hidden, positions, kv)


class _NoNorm(Norm):
    def __call__(self, x: Tensor) -> Tensor:
        return x


class ShiftedHead(Eagle3Head):
    """Rotates by the position of the token instead of that of its hidden state."""

    def forward(
        self, ids: Tensor, hidden: Tensor, positions: Tensor, kv: KVView
    ) -> tuple[Tensor, Tensor]:
        return Eagle3Head.forward(self, ids, hidden, positions + 1, kv)

    def store_kv(self, ids: Tensor, hidden: Tensor, positions: Tensor, kv: PagedView) -> None:
        self.forward(ids, hidden, positions, kv)


class OtherTokenHead(Eagle3Head):
    """Pairs each token with the hidden state of another one."""

    def fuse(self, aux_hidden_states: Tensor) -> Tensor:
        return Eagle3Head.fuse(self, aux_hidden_states.roll(1, dims=0))


FILE_DAMAGE: Mapping[str, Damage] = {
    "fc permuted": permute_fc,
    "aux layers off by one": shift_aux_layers,
    "(1 + weight) read as weight": lose_one_plus,
    "RoPE interleaved": interleave_rope,
    "wrong d2t": damage_d2t,
    "embedding of another vocabulary": damage_embedding,
    "keys and values swapped": swap_keys_and_values,
    "random weights": randomize,
}
HEAD_DAMAGE: Mapping[str, type[Eagle3Head]] = {
    "missing norm": UnnormedHead,
    "position off by one": ShiftedHead,
    "hidden state of the wrong token": OtherTokenHead,
}


def write_damaged(damage: str, source: Path, folder: Path) -> Path:
    """Write a copy of a head with a damage of `FILE_DAMAGE`; others are not in files."""
    tensors = load_file(source / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    if damage in FILE_DAMAGE:
        FILE_DAMAGE[damage](tensors, config)
    folder.mkdir(parents=True)
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder
