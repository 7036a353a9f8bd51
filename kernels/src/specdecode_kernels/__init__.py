"""The operations of the engine: one public function each, with a plain torch reference behind it.

Here live tensors and arithmetic, nothing above them: no model, no request, no configuration. An op
checks its arguments once, in `ops`; `reference` is the truth that every faster kernel is compared
with, and the path on CPU. There a float32 row comes out the same to the last bit whatever rows it
is computed with: text must not depend on the batch, on how a prompt is cut or on how deep one
speculates. `reference.precision` says in which types sums are taken to that end.
"""

from specdecode_kernels.backends import AttentionBackend, choose_backend
from specdecode_kernels.layout import AttentionLayout, KvScale, Tail
from specdecode_kernels.ops import (
    apply_rope,
    attend,
    attend_with_lse,
    linear,
    merge_states,
    rms_norm,
    silu_and_mul,
    store_kv,
)

__all__ = [
    "AttentionBackend",
    "AttentionLayout",
    "KvScale",
    "Tail",
    "apply_rope",
    "attend",
    "attend_with_lse",
    "choose_backend",
    "linear",
    "merge_states",
    "rms_norm",
    "silu_and_mul",
    "store_kv",
]
