"""Kernels in C for a CPU: vectors by the compiler, threads by OpenMP.

They are compiled on the machine where they run, as Triton's are (docs/decisions/0020). A row of
float32 or bfloat16 comes out the same to the bit whatever rows it is computed with, because each
sum has one order: that of its terms.
"""

from specdecode_kernels.cpu.amx import TILES_VARIABLE
from specdecode_kernels.cpu.attention import with_cpu_attention
from specdecode_kernels.cpu.compile import CACHE_VARIABLE
from specdecode_kernels.cpu.decoder_layer import with_fused_layers
from specdecode_kernels.cpu.layers import with_cpu_ops
from specdecode_kernels.cpu.loading import (
    TYPES,
    numerics,
    products_facts,
    tuning_facts,
    unsupported_reason,
)

__all__ = [
    "CACHE_VARIABLE",
    "TILES_VARIABLE",
    "TYPES",
    "numerics",
    "products_facts",
    "tuning_facts",
    "unsupported_reason",
    "with_cpu_attention",
    "with_cpu_ops",
    "with_fused_layers",
]
