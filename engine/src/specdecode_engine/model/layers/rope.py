"""Rotary positions: the parameters in config.json, and the angles of every position.

Parameters have the spelling of transformers 5; `rope_keys.py` finds them in config.json.

Kinds whose frequencies depend on the length of the text (dynamic, longrope) have a table for each
of a few lengths, and a request uses one of them for its whole life: a cached key never has to be
turned again, and a text is the same whatever it shares a batch with.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from specdecode_engine.batch.rotary_tables import RotaryLimits
from specdecode_engine.model.checkpoint.config_file import ConfigFile
from specdecode_engine.model.kv.layer_map import FULL, SLIDING
from specdecode_engine.model.layers.rope_keys import (
    FRACTION,
    KIND,
    MROPE,
    NEWER,
    OLD_KIND,
    OLDER,
    ORIGINAL,
    THETA,
    WITH_ORIGINAL,
    kind_key,
    merge_sections,
    refuse_dropped,
    refuse_other,
    section_in_use,
)

KINDS = ("default", "linear", "dynamic", "yarn", "llama3", "longrope", "proportional")
STRETCHING = ("linear", "dynamic", "yarn")
DEFAULT_THETA = 10_000.0
GLOBAL_THETA = 1_000_000.0
"""Base of layers that see everything, where others have one of their own (Gemma 3)."""
PARTIAL = "rotating a part of each head is not supported"
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
        return max(self.max_position_embeddings, int(self._original * factor))

    def table_limits(self, context_length: int) -> tuple[int, ...]:
        """Return the longest text of each table, ascending; the last one has `context_length`.

        longrope has two sets of factors, for texts of up to original_max_position_embeddings
        tokens and for longer ones. dynamic has a set of frequencies for every length; of these we
        use max_position_embeddings, twice, four times as many and so on. All other kinds have one.
        """
        if self.kind == "longrope" and context_length > self._original:
            return self._original, context_length
        if self.kind != "dynamic":
            return (context_length,)
        limits = [self.max_position_embeddings]
        while limits[-1] < context_length:
            limits.append(2 * limits[-1])
        return tuple(limits)

    @property
    def _original(self) -> int:
        """Positions before any stretching."""
        original = self.parameters.get(ORIGINAL)
        return original if isinstance(original, int) else self.max_position_embeddings


def make_rotary_limits(ropes: Iterable[RopeConfig], context_length: int) -> RotaryLimits:
    """Return the tables of a network whose layers have these kinds of angles."""
    limits = {limit for rope in ropes for limit in rope.table_limits(context_length)}
    ascending = sorted(limits or {context_length})
    needed = bisect_left(ascending, context_length) + 1
    return RotaryLimits(tuple(ascending[:needed]), context_length)


def parse_rope(
    config: ConfigFile, head_dim: int, default: Mapping[str, object] = MappingProxyType({})
) -> RopeConfig:
    """Read the parameters in either spelling; refuse kinds that we do not compute.

    Args:
        default: the parameters of a config.json that has none; the base holds for others too.
    """
    config.refuse(FRACTION, 1.0, PARTIAL)
    section = section_in_use(config)
    rope = _parse(config, section, head_dim, default, THETA)
    refuse_dropped(config, rope.parameters)
    return rope


def _parse(
    config: ConfigFile,
    section: ConfigFile | None,
    head_dim: int,
    default: Mapping[str, object],
    theta_key: str,
) -> RopeConfig:
    """Read one set of parameters; `theta_key` has the base of sections without their own."""
    by_default = ConfigFile(config.file, default, f"{NEWER}.")
    theta = config.real(theta_key, by_default.real(THETA, DEFAULT_THETA))
    if section is None:
        section = by_default
    else:
        theta = section.real(THETA, theta)
    nested = [key for key, value in section.keys.items() if isinstance(value, dict)]
    if nested:
        raise section.error(nested[0], "this model has one set of parameters for all its layers")
    key = kind_key(section)
    kind = section.get(key) or "default"
    if kind != "proportional":  # which has angles of 0 for the other part
        section.refuse(FRACTION, 1.0, PARTIAL)
    if kind == MROPE and section.get("mrope_section") is not None:
        kind = "default"
    if kind not in KINDS:
        raise section.error(key, f"supported kinds are {', '.join(KINDS)}")
    positions = config.integer("max_position_embeddings")
    parameters = {**section.keys, KIND: kind, THETA: theta}
    parameters.pop(OLD_KIND, None)
    _check_factors(section, str(kind), head_dim)
    if kind in WITH_ORIGINAL:
        parameters[ORIGINAL] = section.integer(ORIGINAL, positions)
    elif config.get(ORIGINAL) is not None:
        parameters[ORIGINAL] = config.integer(ORIGINAL)
    return RopeConfig(str(kind), theta, parameters, positions)


def parse_local_rope(config: ConfigFile, head_dim: int) -> tuple[RopeConfig, RopeConfig]:
    """Read the angles of layers that see everything and of those with a window, as in Gemma 3.

    `rope_parameters` has them by layer type; older files have `rope_theta` and `rope_scaling` for
    the former, `rope_local_base_freq` for the latter. `rope_scaling` next to `rope_parameters` is
    laid over the former.
    """
    config.refuse(FRACTION, 1.0, PARTIAL)
    section, older = config.section(NEWER), config.section(OLDER)
    if section is None or not section.keys:
        everything, local = older, None
    else:
        everything, local = section.section(FULL), section.section(SLIDING)
        if everything is None or local is None:
            raise config.error(NEWER, f"it must have {FULL} and {SLIDING}")
        everything = merge_sections(config, everything, older)

    def parse(part: ConfigFile | None, key: str, theta: float) -> RopeConfig:
        rope = _parse(config, part, head_dim, {THETA: theta}, key)
        refuse_other(config, key, rope.theta)
        return rope

    return (
        parse(everything, THETA, GLOBAL_THETA),
        parse(local, "rope_local_base_freq", DEFAULT_THETA),
    )


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
    config: RopeConfig,
    head_dim: int,
    limits: RotaryLimits,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """Tabulate cosines and sines [2, rows of all tables, head_dim / 2].

    They are in float32, and for float64 models the same values widened.
    """
    tables = [
        _table(config, head_dim, limit, rows)
        for limit, rows in zip(limits.limits, limits.rows, strict=True)
    ]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return torch.cat(tables, dim=1).to(device, wide)


def _table(config: RopeConfig, head_dim: int, limit: int, rows: int) -> Tensor:
    """Cosines and sines [2, rows, head_dim / 2] of texts of up to `limit` tokens."""
    frequencies, scale = _frequencies(config, head_dim, limit)
    blocks = [_block(frequencies, first) for first in range(0, rows, BLOCK_POSITIONS)]
    return torch.cat(blocks, dim=1)[:, :rows] * scale


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
