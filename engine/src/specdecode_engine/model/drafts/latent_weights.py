"""Reads a decoder layer with multi-head latent attention."""

import torch
from torch import Tensor

from specdecode_engine.model.layers.latent_attention import LatentAttention, LatentMaps, cut_by_head
from specdecode_engine.model.layers.latent_config import LATENT_NORM_EPS, LatentConfig
from specdecode_engine.model.layers.layers import DecoderLayer, Linear, Norm
from specdecode_engine.model.layers.linears import MapKind, arranged
from specdecode_engine.model.layers.sparse_mlp import SparseMlpConfig
from specdecode_engine.model.target.config import DecoderConfig
from specdecode_engine.model.target.head_order import halves_of_pairs, order_after
from specdecode_engine.model.target.weights import Weights
from specdecode_kernels import AttentionParams


def read_latent_layer(
    weights: Weights, prefix: str, config: DecoderConfig, sparse_mlp: SparseMlpConfig | None
) -> DecoderLayer[LatentAttention]:
    """Read one decoder layer, of whose config `latent` is not None."""
    attention = read_latent_attention(weights, f"{prefix}.self_attn", config)
    return weights.layer_around(attention, prefix, config, sparse_mlp)


def read_latent_attention(weights: Weights, prefix: str, config: DecoderConfig) -> LatentAttention:
    """Read attention, with maps of one input fused and those of heads never quantized."""
    latent, heads = config.latent, config.num_attention_heads
    assert latent is not None
    sizes, has_latents = latent.sizes, latent.q_lora_rank is not None
    expansion = weights.take(f"{prefix}.kv_b_proj.weight")
    keys, values = (
        weights.linears.pack(part, MapKind.HEADS) for part in cut_by_head(expansion, heads, sizes)
    )
    down_order = _down_order(latent, heads)
    maps = LatentMaps(
        _read_map(weights, [f"{prefix}.{name}" for name in latent.joined], down_order),
        [len(down_order) - sizes.key, sizes.kv_lora_rank, sizes.qk_rope_head_dim],
        (
            _read_norm(weights, f"{prefix}.q_a_layernorm"),
            _read_map(weights, [f"{prefix}.q_b_proj"], _query_order(latent, heads)),
        )
        if has_latents
        else None,
        _read_norm(weights, f"{prefix}.kv_a_layernorm"),
        keys,
        values,
        weights.linear(f"{prefix}.o_proj"),
    )
    params = AttentionParams(scale=config.attention_scale)
    return LatentAttention(weights.ops, maps, sizes, heads, params)


def _read_map(weights: Weights, names: list[str], order: Tensor) -> Linear:
    weight = weights.take_map(*(f"{name}.weight" for name in names))
    return weights.linears.make(arranged(weight, lambda rows: rows[order.to(rows.device)]))


def _read_norm(weights: Weights, name: str) -> Norm:
    return Norm(weights.ops, weights.take(f"{name}.weight"), LATENT_NORM_EPS)


def _down_order(latent: LatentConfig, heads: int) -> Tensor:
    """Return the order of queries, or of their latents, and of latents with rotated parts."""
    rank = latent.q_lora_rank
    queries = _query_order(latent, heads) if rank is None else torch.arange(rank)
    keys = _order(latent, latent.sizes.kv_lora_rank)
    return torch.cat((queries, len(queries) + keys))


def _query_order(latent: LatentConfig, heads: int) -> Tensor:
    order = _order(latent, latent.sizes.qk_nope_head_dim)
    return torch.cat([head * len(order) + order for head in range(heads)])


def _order(latent: LatentConfig, kept: int) -> Tensor:
    """Return the order in which rotated parts after `kept` entries have pairs as halves."""
    rotated = latent.sizes.qk_rope_head_dim
    halves = halves_of_pairs(rotated) if latent.is_interleaved else torch.arange(rotated)
    return order_after(kept, halves)
