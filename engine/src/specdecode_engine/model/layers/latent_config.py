"""Multi-head latent attention of an MTP module: its sizes in config.json, and its tensors."""

import math
from dataclasses import dataclass
from typing import NamedTuple, Self

from specdecode_engine.model.checkpoint.checkpoint import Shape
from specdecode_engine.model.checkpoint.config_file import ConfigFile
from specdecode_engine.model.layers.rope import RopeConfig

RANK = "kv_lora_rank"
"""A key of config.json that is there with latent attention alone."""
LATENT_NORM_EPS = 1e-6
"""Of norms of latents, whatever rms_norm_eps is; as in transformers."""


class LatentSizes(NamedTuple):
    """Entries of a latent, and of a head's parts; names as in config.json."""

    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    @property
    def qk(self) -> int:
        """Entries of a head of queries."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def key(self) -> int:
        """Entries of a cached row: latent and rotated part."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def expanded(self) -> int:
        """Entries that `kv_b_proj` computes of a latent for every head."""
        return self.qk_nope_head_dim + self.v_head_dim


@dataclass(frozen=True, slots=True)
class LatentConfig:
    """What config.json declares of latent attention, next to what other attention has."""

    sizes: LatentSizes
    q_lora_rank: int | None  # of latents of queries; None: queries are mapped at once
    is_interleaved: bool  # entries (2i, 2i + 1) turn, else (i, i + n / 2)

    @classmethod
    def read(cls, config: ConfigFile) -> Self:
        """Read the keys; biases are refused, which no published module has."""
        config.refuse("attention_bias", False, "biases of latent attention are not supported")
        sizes = LatentSizes(*(config.integer(key) for key in LatentSizes._fields))
        if sizes.qk_rope_head_dim % 2:
            raise config.error("qk_rope_head_dim", "rotary positions need an even number")
        has_latents = config.get("q_lora_rank") is not None
        return cls(
            sizes,
            config.integer("q_lora_rank") if has_latents else None,
            config.switch("rope_interleave", True),
        )

    def scale(self, rope: RopeConfig) -> float:
        """Return the factor of scores, which angles stretched by YaRN enlarge."""
        scale: float = self.sizes.qk**-0.5
        parameters = rope.parameters
        share, factor = (parameters.get(key) for key in ("mscale_all_dim", "factor"))
        if rope.kind == "default" or not isinstance(share, int | float):
            return scale
        if not isinstance(factor, int | float) or factor <= 1:
            return scale
        return scale * (0.1 * share * math.log(factor) + 1) ** 2

    @property
    def joined(self) -> tuple[str, str]:
        """The maps that read what attention reads, which are one map."""
        return "q_proj" if self.q_lora_rank is None else "q_a_proj", "kv_a_proj_with_mqa"

    def maps(self, hidden_size: int, heads: int) -> dict[str, Shape]:
        """Return the shape [outputs, inputs] of every map."""
        sizes, q_rank = self.sizes, self.q_lora_rank
        queries: dict[str, Shape] = {"q_proj": (heads * sizes.qk, hidden_size)}
        if q_rank is not None:
            queries = {"q_a_proj": (q_rank, hidden_size), "q_b_proj": (heads * sizes.qk, q_rank)}
        return queries | {
            "kv_a_proj_with_mqa": (sizes.key, hidden_size),
            "kv_b_proj": (heads * sizes.expanded, sizes.kv_lora_rank),
            "o_proj": (hidden_size, heads * sizes.v_head_dim),
        }

    def shapes(self, prefix: str, hidden_size: int, heads: int) -> dict[str, Shape]:
        """Name the tensors of attention."""
        norms: dict[str, Shape] = {"kv_a_layernorm": (self.sizes.kv_lora_rank,)}
        if self.q_lora_rank is not None:
            norms["q_a_layernorm"] = (self.q_lora_rank,)
        parts = norms | self.maps(hidden_size, heads)
        return {f"{prefix}.{name}.weight": shape for name, shape in parts.items()}
