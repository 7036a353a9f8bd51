"""Which types a kernel multiplies in, and whether kernels are interpreted at all."""

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

DOT_TYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


@triton.jit
def _probe():
    pass


def is_interpreted() -> bool:
    """Whether TRITON_INTERPRET was set when kernels were defined: they then run on CPU."""
    return isinstance(_probe, InterpretedFunction)


def dot_type(dtype: torch.dtype) -> tl.dtype:
    """Answer the type of a product's factors: that of the queries.

    The interpreter keeps bfloat16 as bits, which numpy would multiply as integers: float32 there.
    """
    if is_interpreted() and dtype == torch.bfloat16:
        return tl.float32
    return DOT_TYPES[dtype]
