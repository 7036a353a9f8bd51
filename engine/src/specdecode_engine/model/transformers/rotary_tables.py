"""Tables of cosines and sines, as transformers' rotary embeddings compute them."""

from typing import Any

import torch
from torch import Tensor, nn

from specdecode_engine.batch.rotary_tables import RotaryLimits

TABLE_BLOCK = 256
"""Positions of a rotary table that one call computes: every table is cut at the same positions."""


def rotary_tables(
    module: nn.Module, limits: RotaryLimits, dtype: torch.dtype, device: torch.device
) -> dict[str | None, tuple[Tensor, Tensor]]:
    """Tabulate a rotary embedding's cosines and sines, per layer type where it has several."""
    types: list[str | None] = list(getattr(module, "rope_type", {}) or [])
    if not types or isinstance(module.rope_type, str):
        types = [None]
    is_meta = device.type == "meta"
    if is_meta and len(limits.limits) > 1:
        # Frequencies that depend on the length need numbers; the module has none on meta.
        module, device = type(module)(module.config), torch.device("cpu")
    tables: dict[str | None, tuple[Tensor, Tensor]] = {}
    for name in types:
        parts = [
            _rotary_table(module, name, limit, rows, torch.empty(0, dtype=dtype, device=device))
            for limit, rows in zip(limits.limits, limits.rows, strict=True)
        ]
        cos, sin = (torch.cat(column) for column in zip(*parts, strict=True))
        tables[name] = (cos.to("meta"), sin.to("meta")) if is_meta else (cos, sin)
    return tables


def _rotary_table(
    module: nn.Module, layer_type: str | None, limit: int, rows: int, x: Tensor
) -> tuple[Tensor, Tensor]:
    """Tabulate cosines and sines [rows, dim] of texts of up to `limit` tokens, as `x` is."""
    arguments = () if layer_type is None else (layer_type,)
    last = torch.tensor([[limit - 1]], device=x.device)
    blocks = []
    for first in range(0, rows, TABLE_BLOCK):
        ids = torch.arange(first, first + TABLE_BLOCK, device=x.device)[None]
        # The last position comes along, so that every block has the frequencies of the limit.
        positions = torch.cat((ids.clamp(max=limit - 1), last), dim=1)
        cos, sin = _cos_and_sin(module(x, positions, *arguments))
        blocks.append((cos[0, :-1], sin[0, :-1]))
    cos, sin = (torch.cat(parts)[:rows] for parts in zip(*blocks, strict=True))
    return cos, sin


def _cos_and_sin(angles: Any) -> tuple[Tensor, Tensor]:
    """Return the pair that most modules compute; Llama 4's are complex, one for two numbers."""
    if isinstance(angles, Tensor):
        return torch.cat((angles.real,) * 2, dim=-1), torch.cat((angles.imag,) * 2, dim=-1)
    cos, sin = angles
    return cos, sin
