"""Rotary positions: the parameters in config.json, and the angles of every position.

Parameters have the spelling of transformers 5: older files have `rope_theta` and `rope_scaling`,
newer ones one dict, `rope_parameters`.

The angle of a position depends on nothing but the position. Kinds whose frequencies depend on the
length of the text (dynamic, longrope) are therefore fixed for the length of the table: a cached
key never has to be turned again, and a text is the same whatever it shares a batch with.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from specdecode_engine.model.config_file import ConfigFile

KINDS = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")
STRETCHING = ("linear", "dynamic", "yarn")
DEFAULT_THETA = 10_000.0
BLOCK_POSITIONS = 256
"""Positions computed by one call: rounding may differ in the last elements of torch's vector loops,
so every table, however long, is cut at the same positions."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """How angles grow with position; `parameters` is what transformers calls rope_parameters."""

    kind: str
    theta: float
    parameters: Mapping[str, object]
    max_position_embeddings: int

    @property
    def trained_positions(self) -> int:
        """How many positions the model is good for, the kind's stretching counted."""
        factor = self.parameters.get("factor")
        if self.kind not in STRETCHING or not isinstance(factor, int | float):
            return self.max_position_embeddings
        base = self.parameters.get("original_max_position_embeddings")
        start = base if isinstance(base, int) else self.max_position_embeddings
        return max(self.max_position_embeddings, int(start * factor))


def parse_rope(config: ConfigFile, head_dim: int) -> RopeConfig:
    """Read either spelling; refuse kinds that we do not compute."""
    config.refuse("partial_rotary_factor", 1.0, "rotating a part of each head is not supported")
    section = config.section("rope_parameters") or config.section("rope_scaling")
    top_theta = config.real("rope_theta", DEFAULT_THETA)
    if section is None:
        section = ConfigFile(config.file, {}, "rope_parameters.")
    section.refuse("partial_rotary_factor", 1.0, "rotating a part of each head is not supported")
    key = "rope_type" if section.get("rope_type") is not None else "type"
    kind = section.get(key) or "default"
    if kind not in KINDS:
        raise section.error(key, f"supported kinds are {', '.join(KINDS)}")
    theta = section.real("rope_theta", top_theta)
    parameters = {**section.keys, "rope_type": kind, "rope_theta": theta}
    parameters.pop("type", None)
    _check_factors(section, str(kind), head_dim)
    original = "original_max_position_embeddings"
    if config.get(original) is not None:
        parameters[original] = config.integer(original)
    return RopeConfig(str(kind), theta, parameters, config.integer("max_position_embeddings"))


def _check_factors(section: ConfigFile, kind: str, head_dim: int) -> None:
    needed = {
        "linear": ("factor",),
        "dynamic": ("factor",),
        "yarn": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    }
    for key in needed.get(kind, ()):
        section.real(key)
    for key in ("long_factor", "short_factor") if kind == "longrope" else ():
        factors = section.get(key)
        if not isinstance(factors, list) or len(factors) != head_dim // 2:
            raise section.error(key, f"longrope needs a list of {head_dim // 2} numbers")


def build_angles(
    config: RopeConfig, head_dim: int, length: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Tabulate cosines and sines [2, length, head_dim / 2], in float32 or for float64 models in it.

    The values of a float64 model are the same, widened.
    """
    frequencies, scale = _frequencies(config, head_dim, length)
    blocks = [_block(frequencies, first) for first in range(0, length, BLOCK_POSITIONS)]
    angles = torch.cat(blocks, dim=1)[:, :length] * scale
    return angles.to(device, torch.float64 if dtype == torch.float64 else torch.float32)


def _block(frequencies: Tensor, first: int) -> Tensor:
    """Cosines and sines [2, BLOCK_POSITIONS, head_dim / 2] from a position on."""
    positions = torch.arange(first, first + BLOCK_POSITIONS, dtype=torch.float32)
    angles = torch.outer(positions, frequencies)
    return torch.stack((angles.cos(), angles.sin()))


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
