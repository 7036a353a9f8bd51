"""Benchmarks of the kernels, one file an op with the op's name, and what can be said without a GPU.

Each prints lines of JSON, with the device and the versions it ran with. What needs a GPU says so
and ends with 2 where there is none.
"""
