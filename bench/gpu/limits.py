"""What the machine allows at best, from memory and a product measured in the same run.

A pass must read the weights and the cached keys and values once and multiply every row with every
weight; it cannot be faster than the slower of both.
The model is the roofline of Williams et al. (2009).
"""

from dataclasses import dataclass

from bench.gpu.scale import MixtureSize, ModelSize
from specdecode_engine.model.checkpoint.config_file import DTYPES


@dataclass(frozen=True, slots=True)
class Floors:
    """Measured on the device."""

    memory_bytes_per_s: float  # of a copy, read and written, or of reading: the faster
    gemm_flop_per_s: float
    launch_us: float  # of a kernel that does nothing, in a graph


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one pass of a model streams and computes."""

    weight_bytes: int  # every matrix but the embedding's table
    parameters: int
    kv_bytes_per_token: int

    @classmethod
    def of(cls, size: ModelSize, layers: int) -> "Traffic":
        """Count it for so many layers of one size; norms are left out."""
        layer = size.hidden * size.head_dim * (2 * size.heads + 2 * size.kv_heads)
        layer += 3 * size.hidden * size.inner
        parameters = layers * layer + size.vocab * size.hidden
        itemsize = DTYPES[size.dtype].itemsize
        kv = 2 * layers * size.kv_heads * size.head_dim * itemsize
        return cls(parameters * itemsize, parameters, kv)

    def seconds(self, floors: Floors, rows: int, kv_tokens: float) -> float:
        """Least time for `rows` rows over `kv_tokens` cached tokens in all."""
        read = (self.weight_bytes + kv_tokens * self.kv_bytes_per_token) / floors.memory_bytes_per_s
        return max(read, 2 * self.parameters * rows / floors.gemm_flop_per_s)


def step_seconds(
    target: Traffic, draft: Traffic, floors: Floors, batch: int, num_steps: int, kv_tokens: float
) -> float:
    """Least time of a step: one verify of num_steps + 1 rows each and num_steps draft passes."""
    verify = target.seconds(floors, batch * (num_steps + 1), kv_tokens)
    return verify + num_steps * draft.seconds(floors, batch, kv_tokens)


def mixture_seconds(
    size: ModelSize, mixture: MixtureSize, floors: Floors, rows: int, kv_tokens: float
) -> float:
    """Least time for a mixture to read the experts that rows choose at random, and all the rest."""
    itemsize = DTYPES[size.dtype].itemsize
    attention = size.hidden * size.head_dim * (2 * size.heads + 2 * size.kv_heads)
    expert = 3 * size.hidden * mixture.inner
    chosen = mixture.experts * (1 - (1 - mixture.top_k / mixture.experts) ** rows)
    layer = attention + size.hidden * mixture.experts + chosen * expert
    read = itemsize * (size.layers * layer + size.vocab * size.hidden)
    kv = 2 * size.layers * size.kv_heads * size.head_dim * itemsize * kv_tokens
    return (read + kv) / floors.memory_bytes_per_s
