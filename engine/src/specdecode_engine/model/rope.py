"""Rotary angles for every position up to a given length, computed once at load.

The angle of a position depends on nothing but the position. Kinds whose frequencies depend on the
length of the text (dynamic, longrope) are therefore fixed for the length of the table: a cached
key never has to be turned again, and a text is the same whatever it shares a batch with.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from specdecode_engine.model.rope_config import RopeConfig

BLOCK_POSITIONS = 256
"""Positions computed by one call: rounding may differ in the last elements of torch's vector loops,
so every table, however long, is cut at the same positions."""


@dataclass(frozen=True, slots=True, eq=False)
class Angles:
    """Cosines and sines, one row per position or query row."""

    cos: Tensor  # [rows, head_dim / 2]
    sin: Tensor  # [rows, head_dim / 2]

    def at(self, positions: Tensor) -> "Angles":
        """Pick the rows of `positions` [rows] i64.

        A step verifies a few rows past the end of the context; they are cut from the output
        afterwards, so any angle will do for them.
        """
        positions = positions.clamp(max=self.cos.shape[0] - 1)
        return Angles(self.cos[positions], self.sin[positions])


def build_angles(
    config: RopeConfig, head_dim: int, length: int, dtype: torch.dtype, device: torch.device
) -> Angles:
    """Tabulate positions 0..length-1, in float32; widened for a float64 model."""
    frequencies, scale = _frequencies(config, head_dim, length)
    blocks = [_block(frequencies, first) for first in range(0, length, BLOCK_POSITIONS)]
    cos, sin = (torch.cat(parts)[:length] * scale for parts in zip(*blocks, strict=True))
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return Angles(cos.to(device, wide), sin.to(device, wide))


def _block(frequencies: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [BLOCK_POSITIONS, head_dim / 2] from a position on."""
    positions = torch.arange(first, first + BLOCK_POSITIONS, dtype=torch.float32)
    angles = torch.outer(positions, frequencies)
    return angles.cos(), angles.sin()


def _frequencies(config: RopeConfig, head_dim: int, length: int) -> tuple[Tensor, float]:
    if config.kind == "default":
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        return torch.reciprocal(config.theta**exponents), 1.0
    return _scaled_frequencies(config, head_dim, length)


def _scaled_frequencies(config: RopeConfig, head_dim: int, length: int) -> tuple[Tensor, float]:
    # Imported here: transformers takes seconds, and most models need nothing of it.
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    described = LlamaConfig(
        hidden_size=head_dim,
        num_attention_heads=1,
        head_dim=head_dim,
        max_position_embeddings=config.max_position_embeddings,
        rope_parameters=dict(config.parameters),
    )
    initialise = ROPE_INIT_FUNCTIONS[config.kind]
    frequencies, scale = initialise(described, torch.device("cpu"), seq_len=length)
    return frequencies, float(scale)
