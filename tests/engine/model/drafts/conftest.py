"""Every published layout of a head: what is in its files, and a slow recomputation of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from specdecode_engine.model.drafts.eagle import Eagle1Head, Eagle3Head
from specdecode_engine.model.target.llama import Llama

Tensors = dict[str, Tensor]
Config = dict[str, object]


@dataclass(frozen=True)
class Layout:
    """A published head: its tensors, and how its config.json differs from the target's."""

    name: str
    keys: Config
    tensors: Callable[[], Tensors]
    target_hidden: int = 12
    slow: Callable[["Layout", Tensors, Tensor, Tensor], tuple[Tensor, Tensor]] = field(kw_only=True)

    def has(self, key: str) -> bool:
        section = self.keys.get("eagle_config", {})
        assert isinstance(section, dict)
        return bool({**self.keys, **section}.get(key, False))

    def window(self, layer: int) -> int | None:
        types = self.keys.get("layer_types", ["sliding_attention"] * (layer + 1))
        width = self.keys.get("sliding_window")
        assert isinstance(types, list)
        return width if isinstance(width, int) and types[layer] == "sliding_attention" else None


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * weight


def turned(x: Tensor) -> Tensor:
    # x [rows, heads, 6] at positions 0, 1, …
    angles = torch.arange(len(x))[:, None] / 10_000 ** (torch.arange(3) / 3)
    pairs = torch.complex(x[..., :3], x[..., 3:]) * torch.polar(torch.ones(()), angles)[:, None]
    return torch.cat((pairs.real, pairs.imag), dim=-1)


def slow_layer(
    w: Tensors, prefix: str, read: Tensor, x: Tensor, window: int | None = None
) -> Tensor:
    """One layer over rows at positions 0, 1, …: attention reads `read`, the residual is `x`."""
    layer = {n.removeprefix(prefix): t for n, t in w.items() if n.startswith(prefix)}

    def mapped(name: str, rows: Tensor) -> Tensor:
        return rows @ layer[f"{name}.weight"].T + layer.get(f"{name}.bias", 0)

    q, k, v = (mapped(f"self_attn.{n}_proj", read).view(len(x), -1, 6).double() for n in "qkv")
    if "self_attn.q_norm.weight" in layer:
        q, k = (
            normed(q, layer["self_attn.q_norm.weight"]),
            normed(k, layer["self_attn.k_norm.weight"]),
        )
    k, v = (each.repeat_interleave(2, dim=1) for each in (turned(k), v))
    scores = torch.einsum("ihd,jhd->hij", turned(q), k) / 6**0.5
    age = torch.arange(len(x))[:, None] - torch.arange(len(x))
    seen = (age >= 0) & (age < (window or len(x)))
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    x = x + mapped("self_attn.o_proj", torch.einsum("hij,jhd->ihd", weights, v).flatten(1))
    y = normed(x, layer["post_attention_layernorm.weight"])
    gated = silu(mapped("mlp.gate_proj", y)) * mapped("mlp.up_proj", y)
    return x + mapped("mlp.down_proj", gated)


def slow_eagle1(layout: Layout, w: Tensors, token: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    x = torch.cat((token, hidden), dim=-1) @ w["fc.weight"].T + w.get("fc.bias", 0)
    x = slow_layer(w, "layers.0.", x, x)
    if "layers.1.input_layernorm.weight" in w:
        x = slow_layer(w, "layers.1.", normed(x, w["layers.1.input_layernorm.weight"]), x)
    return x, x


def slow_eagle3(layout: Layout, w: Tensors, token: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    prefix = "midlayer." if "midlayer.hidden_norm.weight" in w else "layers.0."
    b = normed(hidden, w[prefix + "hidden_norm.weight"])
    pair = torch.cat((normed(token, w[prefix + "input_layernorm.weight"]), b), dim=-1)
    residual = b if layout.has("norm_before_residual") else hidden
    out = slow_layer(w, prefix, pair, residual, layout.window(0))
    if "layers.1.input_layernorm.weight" in w:
        read = normed(out, w["layers.1.input_layernorm.weight"])
        out = slow_layer(w, "layers.1.", read, out, layout.window(1))
    final = normed(out, w["norm.weight"])
    return final, final if layout.has("norm_output") else out


def slow_fuse(layout: Layout, w: Tensors, features: Tensor) -> Tensor:
    if "norm.weight" not in w:  # EAGLE-1, whose fc is for something else
        return features
    if "input_norm.weight" in w:
        features = normed(features, w["input_norm.weight"])
    if "fc_norm.0.weight" in w:
        parts = features.split(layout.target_hidden, dim=-1)
        norms = [w[f"fc_norm.{number}.weight"] for number in range(3)]
        features = torch.cat([normed(p, n) for p, n in zip(parts, norms, strict=True)], dim=-1)
    return features @ w["fc.weight"].T + w.get("fc.bias", 0) if "fc.weight" in w else features


def layer_tensors(prefix: str, read: int, qkv_bias: bool = False) -> Tensors:
    shapes = {
        "self_attn.q_proj": (24, read),
        "self_attn.k_proj": (12, read),
        "self_attn.v_proj": (12, read),
        "self_attn.o_proj": (12, 24),
        "mlp.gate_proj": (20, 12),
        "mlp.up_proj": (20, 12),
        "mlp.down_proj": (12, 20),
        "post_attention_layernorm": (12,),
    }
    tensors = {f"{prefix}{name}.weight": torch.randn(s) * 0.3 for name, s in shapes.items()}
    biases = {
        f"{prefix}self_attn.{n}_proj.bias": torch.randn(24 if n == "q" else 12) for n in "qkv"
    }
    return tensors | (biases if qkv_bias else {})


def eagle1(bias: bool = True, qkv_bias: bool = False, layers: int = 1) -> Callable[[], Tensors]:
    def make() -> Tensors:
        tensors = {"fc.weight": torch.randn(12, 24) * 0.3, "fc.bias": torch.randn(12)}
        for number in range(layers):
            tensors |= layer_tensors(f"layers.{number}.", 12, qkv_bias)
            if number:
                tensors[f"layers.{number}.input_layernorm.weight"] = torch.randn(12)
        return tensors if bias else {n: t for n, t in tensors.items() if n != "fc.bias"}

    return make


def eagle3(
    prefix: str = "midlayer.",
    target_hidden: int = 12,
    without: str = " ",
    biases: str = "",
    layers: int = 1,
    **added: tuple[int, ...],
) -> Callable[[], Tensors]:
    targets = torch.tensor([2, 3, 5, 8, 13, 21, 30])
    wide = {"q_proj": 24, "gate_proj": 20, "up_proj": 20}

    def make() -> Tensors:
        tensors = {
            "fc.weight": torch.randn(12, 3 * target_hidden) * 0.3,
            **layer_tensors(prefix, 24),
            f"{prefix}input_layernorm.weight": torch.randn(12),
            f"{prefix}hidden_norm.weight": torch.randn(12),
            "norm.weight": torch.randn(12),
            "lm_head.weight": torch.randn(7, 12),
            "d2t": targets - torch.arange(7),
            **{n.replace("__", "."): torch.randn(shape) for n, shape in added.items()},
            **{
                f"{prefix}{name}.bias": torch.randn(wide.get(name.partition(".")[2], 12))
                for name in biases.split()
            },
        }
        if layers == 2:
            tensors |= layer_tensors("layers.1.", 12)
            tensors["layers.1.input_layernorm.weight"] = torch.randn(12)
        return {n: t for n, t in tensors.items() if n not in without.split()}

    return make


EAGLE1: Config = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1}
EAGLE3: Config = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "draft_vocab_size": 7,
    "eagle_aux_hidden_state_layer_ids": [0, 1, 3],
}
ANOTHER_NAME: Config = {"architectures": ["LlamaForCausalLMEagle"]}
FC_NORMS: dict[str, Any] = {f"fc_norm__{number}__weight": (12,) for number in range(3)}
FC_NORMS_OF_24: dict[str, Any] = dict.fromkeys(FC_NORMS, (24,))
WHOLE: Config = {"draft_vocab_size": None}
TWO_LAYERS: Config = {**EAGLE3, "num_hidden_layers": 2}
QKV = "self_attn.q_proj self_attn.k_proj self_attn.v_proj"
ALL_MAPS = f"{QKV} self_attn.o_proj mlp.gate_proj mlp.up_proj mlp.down_proj"
HEAD_NORMS: dict[str, Any] = {f"layers__0__self_attn__{n}_norm__weight": (6,) for n in "qk"}
OF_SPECULATORS: Config = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "transformer_layer_config": {"model_type": "qwen3"},
    "eagle_aux_hidden_state_layer_ids": [1, 2, 4],
    "norm_before_residual": True,
}
IDS_INSIDE: Config = {
    "eagle_aux_hidden_state_layer_ids": None,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 3], "norm_before_fc": True},
}

LAYOUTS = [
    Layout("eagle", EAGLE1, eagle1(), slow=slow_eagle1),
    Layout(
        "eagle, no bias of fc",
        {**EAGLE1, **ANOTHER_NAME, "bias": False},
        eagle1(bias=False),
        slow=slow_eagle1,
    ),
    Layout(
        "eagle, Qwen's biases",
        {**EAGLE1, "qkv_bias": True},
        eagle1(qkv_bias=True),
        slow=slow_eagle1,
    ),
    Layout(
        "eagle, two layers", {**EAGLE1, "num_hidden_layers": 2}, eagle1(layers=2), slow=slow_eagle1
    ),
    Layout("eagle3", EAGLE3, eagle3(), slow=slow_eagle3),
    Layout(
        "eagle3, own embedding",
        EAGLE3,
        eagle3("layers.0.", embed_tokens__weight=(31, 12), fc__bias=(12,)),
        slow=slow_eagle3,
    ),
    Layout(
        "eagle3, norm before fc",
        {**EAGLE3, **IDS_INSIDE},
        eagle3(input_norm__weight=(36,)),
        slow=slow_eagle3,
    ),
    Layout(
        "eagle3.1 of SpecForge",
        {**EAGLE3, "fc_norm": True, "norm_output": True},
        eagle3(**FC_NORMS),
        slow=slow_eagle3,
    ),
    Layout(
        "eagle3 of speculators",
        {**EAGLE3, "norm_before_fc": True, "norm_output": True, "norm_before_residual": True},
        eagle3("layers.0.", input_norm__weight=(36,)),
        slow=slow_eagle3,
    ),
    Layout(
        "eagle3, the target's head",
        {**EAGLE3, **WHOLE},
        eagle3(without="lm_head.weight d2t"),
        slow=slow_eagle3,
    ),
    Layout(
        "eagle3, tied",
        {**EAGLE3, **WHOLE, "tie_word_embeddings": True},
        eagle3(without="lm_head.weight d2t", embed_tokens__weight=(31, 12)),
        slow=slow_eagle3,
    ),
    Layout(
        "eagle3, last hidden state",
        {**EAGLE3, "eagle_config": {"use_aux_hidden_state": False}},
        eagle3(without="fc.weight"),
        slow=slow_eagle3,
    ),
    Layout("eagle3, two layers", TWO_LAYERS, eagle3("layers.0.", layers=2), slow=slow_eagle3),
    Layout(
        "eagle3, a window in the second layer",
        {
            **TWO_LAYERS,
            "sliding_window": 3,
            "layer_types": ["full_attention", "sliding_attention"],
        },
        eagle3("layers.0.", layers=2),
        slow=slow_eagle3,
    ),
    Layout("eagle3, own window", {**EAGLE3, "sliding_window": 4}, eagle3(), slow=slow_eagle3),
    Layout("eagle3, scaled logits", {**EAGLE3, "logit_scale": 0.25}, eagle3(), slow=slow_eagle3),
    Layout(
        "eagle3, all biases",
        {**EAGLE3, "attention_bias": True, "mlp_bias": True},
        eagle3(biases=ALL_MAPS),
        slow=slow_eagle3,
    ),
    Layout(
        "eagle3, Qwen's biases",
        {**EAGLE3, "qkv_bias": True},
        eagle3(biases=QKV),
        slow=slow_eagle3,
    ),
    Layout(
        "eagle3, speculators' Qwen3",
        {**EAGLE3, **OF_SPECULATORS},
        eagle3("layers.0.", **HEAD_NORMS),
        slow=slow_eagle3,
    ),
    Layout(
        "eagle3, wider target",
        {**EAGLE3, "target_hidden_size": 24, "fc_norm": True},
        eagle3(
            target_hidden=24,
            embed_tokens__weight=(31, 12),
            **FC_NORMS_OF_24,
        ),
        target_hidden=24,
        slow=slow_eagle3,
    ),
]


@dataclass(frozen=True)
class Loaded:
    """A head with what the recomputation needs, widened."""

    layout: Layout
    head: Eagle1Head | Eagle3Head
    weights: Tensors
    embedding: Tensor
    scores: Tensor  # [draft_vocab, 12]

    def fuse(self, features: Tensor) -> Tensor:
        return slow_fuse(self.layout, self.weights, features.double())

    def last(self, ids: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Logits after a text and its last row's recurrent output."""
        token = self.embedding[ids]
        final, recurrent = self.layout.slow(self.layout, self.weights, token, hidden)
        scale = self.layout.keys.get("logit_scale", 1.0)
        assert isinstance(scale, float)
        return final[-1] @ self.scores.T * scale, recurrent[-1]


@pytest.fixture(params=LAYOUTS, ids=lambda layout: layout.name)
def loaded(
    request: pytest.FixtureRequest, tmp_path: Path, config: Config, tensors: Tensors, write: Any
) -> Loaded:
    layout: Layout = request.param
    target = Llama.load(
        write(tmp_path / "t", *target_of(layout, config, tensors)), device=torch.device("cpu")
    )
    torch.manual_seed(3)
    made = layout.tensors()
    folder = write(tmp_path / "h", {**config, "max_position_embeddings": 4, **layout.keys}, made)
    kind = Eagle1Head if layout.slow is slow_eagle1 else Eagle3Head
    weights = {n: t.double() for n, t in made.items() if n != "d2t"}
    embedding = weights.get("embed_tokens.weight", target.embedding.double())
    head = target.head.weight
    assert isinstance(head, Tensor)
    tied = embedding if layout.has("tie_word_embeddings") else head.double()
    scores = weights.get("lm_head.weight", tied)
    return Loaded(layout, kind.load(folder, target), weights, embedding, scores)


def target_of(layout: Layout, config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """The tiny Llama, widened by repeating itself where a layout wants it."""
    if layout.target_hidden == 12:
        return config, tensors
    wide = {n: torch.cat((t, t), dim=-1) if t.shape[-1] == 12 else t for n, t in tensors.items()}
    wide = {n: torch.cat((t, t)) if t.shape[0] == 12 else t for n, t in wide.items()}
    for name in [n for n in wide if "k_proj" in n or "v_proj" in n]:
        wide[name] = wide[name][:12]
    return {**config, "hidden_size": 24}, wide
