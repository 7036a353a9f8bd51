"""Each op as one would write it on a board, in plain torch. Arguments are trusted: `ops` checks."""

from specdecode_kernels.reference.attention import attend
from specdecode_kernels.reference.elementwise import rms_norm, rotate, silu_and_mul, store_kv
from specdecode_kernels.reference.linear import linear

__all__ = ["attend", "linear", "rms_norm", "rotate", "silu_and_mul", "store_kv"]
