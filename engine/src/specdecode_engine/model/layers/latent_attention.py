"""Multi-head latent attention over latents, which are cached in place of keys and values.

A head's key is its map W_k of a latent next to a part that all heads share, and its value is its
map W_v of the latent. So q . (W_k c) = (W_k^T q) . c, and a weighted sum of W_v c is W_v of the sum
of c: queries are mapped to latents, all heads read one row of the cache, and what they read is
mapped afterwards. Prefill, decoding, verification and trees are computed alike, so a token has one
cached row and one sum whatever computes it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from specdecode_engine.model.kv.kv_cache import RotaryRows
from specdecode_engine.model.kv.kv_views import KVView, PagedView
from specdecode_engine.model.layers.latent_config import LatentSizes
from specdecode_engine.model.layers.layers import Linear
from specdecode_kernels import AnyWeight, AttentionParams, Backend

RowNorm = Callable[[Tensor], Tensor]
"""Maps [rows, n] to itself."""


class LatentMaps(NamedTuple):
    """The maps of one attention; halves of rotated parts lie one after the other."""

    down: Linear  # queries, or what they are computed of; latent; shared part of keys
    widths: list[int]  # of the three
    queries: tuple[RowNorm, Linear] | None  # norm and map of what queries are computed of
    norm: RowNorm  # of latents
    keys: AnyWeight  # of each head, from queries to latents [heads, kv_lora_rank, qk_nope]
    values: AnyWeight  # of each head, from latents to values [heads, v_head_dim, kv_lora_rank]
    output: Linear


@dataclass(frozen=True, slots=True, eq=False)
class LatentAttention:
    """Attention over the latents of a view."""

    ops: Backend
    maps: LatentMaps
    sizes: LatentSizes
    heads: int
    params: AttentionParams  # with a scale

    def __call__(self, x: Tensor, rotary: RotaryRows, layer: int, kv: KVView) -> Tensor:
        """Map [rows, inputs] to [rows, outputs]."""
        q, k = self._project(x, rotary)
        read = kv.attend(layer, q, k, k[..., : self.sizes.kv_lora_rank], self.params)
        return self.maps.output(self.ops.map_heads(read, self.maps.values).flatten(1))

    def store_kv(self, x: Tensor, rotary: RotaryRows, layer: int, kv: PagedView) -> None:
        """Write the latents of [rows, inputs], as a call does, and compute nothing else."""
        _, k = self._project(x, rotary)
        kv.store(layer, k, k[..., : self.sizes.kv_lora_rank])

    def _project(self, x: Tensor, rotary: RotaryRows) -> tuple[Tensor, Tensor]:
        """Return queries [rows, heads, n] and keys [rows, 1, n]: latents and rotated parts."""
        maps, ops, sizes = self.maps, self.ops, self.sizes
        q, latent, k_rope = maps.down(x).split_with_sizes(maps.widths, dim=1)
        if maps.queries is not None:
            norm, up = maps.queries
            q = up(norm(q))
        parts = [sizes.qk_nope_head_dim, sizes.qk_rope_head_dim]
        q, q_rope = q.view(-1, self.heads, sizes.qk).split_with_sizes(parts, dim=2)
        q_rope, k_rope = ops.apply_rope(q_rope, k_rope[:, None], *rotary)
        k = torch.cat((maps.norm(latent)[:, None], k_rope), dim=2)
        return torch.cat((ops.map_heads(q, maps.keys), q_rope), dim=2), k


def cut_by_head(expansion: Tensor, heads: int, sizes: LatentSizes) -> tuple[Tensor, Tensor]:
    """Cut the weight of `kv_b_proj` [heads * n, kv_lora_rank] into the maps of `LatentMaps`.

    Returns:
        From queries to latents [heads, kv_lora_rank, qk_nope], and from latents to values
        [heads, v_head_dim, kv_lora_rank]; copies.
    """
    by_head = expansion.view(heads, sizes.expanded, sizes.kv_lora_rank)
    keys, values = by_head.split_with_sizes([sizes.qk_nope_head_dim, sizes.v_head_dim], dim=1)
    return keys.transpose(1, 2).contiguous(), values.contiguous()
