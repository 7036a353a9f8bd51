"""Recognises multi-head latent attention by what a module computes, on random numbers.

Source: DeepSeek-AI, "DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language
Model", 2024.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from specdecode_engine.model.layers.latent_config import LatentSizes
from specdecode_engine.model.target.head_order import halves_of_pairs
from specdecode_engine.model.transformers.attention_form import Rotation, attend_recorded
from specdecode_engine.model.transformers.recognition import (
    is_close,
    random_linear,
    random_tensor,
    with_random_parameters,
)
from specdecode_kernels.metadata import AttentionParams
from specdecode_kernels.torch.elementwise import rotate

LATENTS = ("kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj")
OUTPUT = "o_proj"
QUERIES = (("q_proj",), ("q_a_proj", "q_a_layernorm", "q_b_proj"))

_WIDTH, _ROWS, _HEADS = 8, 3, 2
"""Of the probe; modules take as many heads as their maps have outputs for."""


class LatentForm(NamedTuple):
    """What a module of latent attention computes."""

    queries: tuple[str, ...]  # the map of queries; or down, norm and up
    sizes: LatentSizes
    heads: int
    rotation: Rotation  # of the last part of queries and keys
    params: AttentionParams


def recognise_latent_attention(module: nn.Module) -> LatentForm | None:
    """Return what a module of latent attention over pages computes; None if it is none."""
    found = _children(module)
    if found is None:
        return None
    queries, sizes, heads = found
    probe = _LatentProbe.of(module, queries, sizes)
    with torch.no_grad():
        for angles, rotations in probe.angle_forms():
            seen = attend_recorded(module, probe.children, probe.rows, angles, probe.output)
            if seen is None:
                continue
            for rotation, is_in_halves in rotations:
                if all(map(is_close, seen[:3], probe.heads(rotation, is_in_halves))):
                    params = replace(seen.params, scale=seen.params.scale_of(sizes.qk))
                    return LatentForm(queries, sizes, heads, rotation, params)
    return None


def _children(module: nn.Module) -> tuple[tuple[str, ...], LatentSizes, int] | None:
    """Find the maps and norms, and nothing else; also return sizes and the number of heads."""
    names = {name for name, _ in module.named_children()}
    queries = next((one for one in QUERIES if names == {*one, *LATENTS, OUTPUT}), None)
    sizes = [getattr(module, name, None) for name in LatentSizes._fields]
    if queries is None or not all(isinstance(size, int) and size > 0 for size in sizes):
        return None
    of = LatentSizes(*cast(list[int], sizes))
    maps = {name: one for name, one in module.named_children() if not name.endswith("norm")}
    if any(type(one) is not nn.Linear for one in maps.values()):
        return None
    linears = cast(dict[str, nn.Linear], maps)
    expand = linears[LATENTS[2]]
    heads = expand.out_features // of.expanded
    widths = [linears[name].out_features for name in (queries[-1], LATENTS[0], LATENTS[2])]
    inputs = [expand.in_features, linears[OUTPUT].in_features]
    wanted = [heads * of.qk, of.key, heads * of.expanded], [of.kv_lora_rank, heads * of.v_head_dim]
    is_even = of.qk_rope_head_dim % 2 == 0
    return (
        (queries, of, heads)
        if (widths, inputs) == wanted and is_even and expand.bias is None
        else None
    )


@dataclass(frozen=True, slots=True)
class _LatentProbe:
    """What a module is computed with, in place of its own weights."""

    queries: tuple[str, ...]
    sizes: LatentSizes
    rows: Tensor  # [rows, inputs]
    angles: tuple[Tensor, Tensor]  # [rows, qk_rope_head_dim / 2]
    children: Mapping[str, nn.Module]

    @classmethod
    def of(cls, module: nn.Module, queries: tuple[str, ...], sizes: LatentSizes) -> "_LatentProbe":
        down, norm, expand = LATENTS
        width = cast(nn.Linear, module.get_submodule(queries[0])).out_features
        first = _HEADS * sizes.qk if len(queries) == 1 else width
        children = {
            queries[0]: random_linear(_WIDTH, first),
            down: random_linear(_WIDTH, sizes.key, seed=1),
            norm: with_random_parameters(module.get_submodule(norm), seed=2),
            expand: random_linear(sizes.kv_lora_rank, _HEADS * sizes.expanded, seed=3),
            OUTPUT: random_linear(_HEADS * sizes.v_head_dim, _WIDTH, seed=4),
        }
        if len(queries) == 3:
            children[queries[1]] = with_random_parameters(module.get_submodule(queries[1]), seed=5)
            children[queries[2]] = random_linear(width, _HEADS * sizes.qk, seed=6)
        shape = _ROWS, sizes.qk_rope_head_dim // 2
        angles = random_tensor(*shape), random_tensor(*shape, seed=1)
        return cls(queries, sizes, random_tensor(_ROWS, _WIDTH), angles, children)

    def angle_forms(self) -> Iterator[tuple[object, tuple[tuple[Rotation, bool], ...]]]:
        """Yield angles in the forms that modules take, what each may turn, and into which order.

        Turned pairs come out as pairs, or the first of every pair first.
        """
        cos, sin = self.angles
        halves = tuple(torch.cat((half, half), dim=-1)[None] for half in self.angles)
        yield halves, ((Rotation.HALVES, True), (Rotation.PAIRS, True))
        yield torch.complex(cos, sin)[None], ((Rotation.PAIRS, False),)

    def output(self, attended: Tensor) -> Tensor:
        """Compute what a module makes of what queries read [rows, heads, v_head_dim]."""
        mapped: Tensor = self.children[OUTPUT](attended.flatten(1))
        return mapped

    def heads(self, rotation: Rotation, is_in_halves: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Compute queries, keys and values of every head, as a module would attend with them."""
        sizes, (down, norm, expand) = self.sizes, LATENTS
        q = self.rows
        for name in self.queries:
            q = self.children[name](q)
        q = q.view(_ROWS, _HEADS, sizes.qk)
        mapped = self.children[down](self.rows)
        latent, k_rope = mapped.split_with_sizes([sizes.kv_lora_rank, sizes.qk_rope_head_dim], 1)
        expanded = self.children[expand](self.children[norm](latent[None])[0])
        expanded = expanded.view(_ROWS, _HEADS, sizes.expanded)
        k, v = expanded.split_with_sizes([sizes.qk_nope_head_dim, sizes.v_head_dim], 2)
        q_rope, k_rope = (
            self._turned(part, rotation, is_in_halves)
            for part in (q[..., sizes.qk_nope_head_dim :], k_rope[:, None])
        )
        q = torch.cat((q[..., : sizes.qk_nope_head_dim], q_rope), dim=-1)
        return q, torch.cat((k, k_rope.expand(-1, _HEADS, -1)), dim=-1), v

    def _turned(self, x: Tensor, rotation: Rotation, is_in_halves: bool) -> Tensor:
        if rotation is Rotation.HALVES:
            return rotate(x, *self.angles)
        x = rotate(x[..., halves_of_pairs(x.shape[-1])], *self.angles)
        return x if is_in_halves else torch.stack(x.chunk(2, dim=-1), dim=-1).flatten(-2)
