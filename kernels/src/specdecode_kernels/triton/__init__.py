"""Triton kernels, one file per op: the kernel, below it what launches it.

Nothing is imported here, so that a machine without Triton can run the references. Arguments are
trusted. Each launcher is safe to capture in a CUDA graph: it never synchronises, its grid
follows from shapes alone, and what it allocates are outputs and scratch of fixed size.
Sums are taken in float32, offsets in 64 bits.
"""
