"""Rotary position parameters of a config.json, in the spelling of transformers 5.

Older files have `rope_theta` and `rope_scaling`, newer ones one dict, `rope_parameters`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from specdecode_engine.model.config_file import ConfigFile

KINDS = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")
STRETCHING = ("linear", "dynamic", "yarn")
DEFAULT_THETA = 10_000.0


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
