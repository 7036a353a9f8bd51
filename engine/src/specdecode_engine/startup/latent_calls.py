"""The calls of multi-head latent attention in a draft head, on tensors without memory."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from specdecode_engine.model.drafts.draft_config import DraftConfig
from specdecode_engine.model.layers.latent_attention import LatentAttention, LatentMaps
from specdecode_engine.model.layers.latent_config import LATENT_NORM_EPS, LatentConfig
from specdecode_engine.model.layers.layers import Linear, Norm
from specdecode_engine.model.transformers.row_audit import ProbeView
from specdecode_engine.startup.op_inputs import empty
from specdecode_kernels import AttentionParams, Backend, OpCall


def latent_calls(
    name: str, model: DraftConfig, dtype: torch.dtype, ops: Backend
) -> Iterator[OpCall]:
    """Yield attention of a layer without what reads the cache, if it is latent."""
    if model.decoder.latent is None:
        return
    attention = _attention(model.decoder.latent, model, dtype, ops)
    # Heads of one row are read in place, those of several are copied.
    for rows in (1, 3):
        yield f"layers of the {name}", partial(_attend, attention, model, dtype, rows)


def _attend(attention: LatentAttention, model: DraftConfig, dtype: torch.dtype, rows: int) -> None:
    angles = empty(rows, model.decoder.head_dim // 2, dtype=dtype)
    x = empty(rows, model.decoder.hidden_size, dtype=dtype)
    attention(x, (angles, angles), 0, ProbeView(model.layer_map))


def _attention(
    latent: LatentConfig, model: DraftConfig, dtype: torch.dtype, ops: Backend
) -> LatentAttention:
    heads, sizes = model.decoder.num_attention_heads, latent.sizes
    shapes = latent.maps(model.decoder.hidden_size, heads)

    def linear(*names: str) -> Linear:
        outputs = sum(shapes[name][0] for name in names)
        return Linear(ops, empty(outputs, shapes[names[0]][1], dtype=dtype))

    def weight(*shape: int) -> Tensor:
        return empty(*shape, dtype=dtype)

    maps = LatentMaps(
        linear(*latent.joined),
        [shapes[latent.joined[0]][0], sizes.kv_lora_rank, sizes.qk_rope_head_dim],
        None
        if latent.q_lora_rank is None
        else (Norm(ops, weight(latent.q_lora_rank), LATENT_NORM_EPS), linear("q_b_proj")),
        Norm(ops, weight(sizes.kv_lora_rank), LATENT_NORM_EPS),
        weight(heads, sizes.kv_lora_rank, sizes.qk_nope_head_dim),
        weight(heads, sizes.v_head_dim, sizes.kv_lora_rank),
        linear("o_proj"),
    )
    return LatentAttention(ops, maps, sizes, heads, AttentionParams(scale=1.0))
