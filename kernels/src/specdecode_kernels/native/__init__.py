"""Kernels in C for a CPU, beside Triton's for a GPU: vectors by the compiler, threads by OpenMP.

They are compiled on the machine where they run, as Triton's are (docs/decisions/0020). A row of
float32 or bfloat16 comes out the same to the bit whatever rows it is computed with, because each
sum has one order: that of its terms.
"""

from specdecode_kernels.native.library import TYPES, VARIABLE, obstacle

__all__ = ["TYPES", "VARIABLE", "obstacle"]
