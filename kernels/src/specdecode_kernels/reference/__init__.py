"""Each op as one would write it on a board, in plain torch. Arguments are trusted: `ops` checks."""

from specdecode_kernels.reference.attention import attend, attend_with_lse
from specdecode_kernels.reference.elementwise import rms_norm, rotate, silu_and_mul
from specdecode_kernels.reference.linear import linear
from specdecode_kernels.reference.merge_states import merge_states
from specdecode_kernels.reference.pool import store_kv

__all__ = [
    "attend",
    "attend_with_lse",
    "linear",
    "merge_states",
    "rms_norm",
    "rotate",
    "silu_and_mul",
    "store_kv",
]
