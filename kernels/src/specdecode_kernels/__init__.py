"""The operations of the engine: one public function each, with a plain torch reference behind it.

Here live tensors and arithmetic, nothing above them: no model, no request, no configuration. An op
checks its arguments once, in `ops`; `reference` is the truth that every faster kernel is compared
with, and the path on CPU. Accumulation is float32, or float64 where the inputs are float64.
"""

from specdecode_kernels.layout import AttentionLayout, Tail
from specdecode_kernels.ops import apply_rope, attend, rms_norm, silu_and_mul, store_kv

__all__ = [
    "AttentionLayout",
    "Tail",
    "apply_rope",
    "attend",
    "rms_norm",
    "silu_and_mul",
    "store_kv",
]
