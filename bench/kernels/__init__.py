"""How fast each kernel is beside its plain torch twin: `PYTHONPATH=bench python -m kernels.<op>`.

One module per op, with the name of the op's kernel, reference and test, and what can be said
without a GPU. Each prints lines of JSON, with the device and the versions it ran with. What needs a
GPU says so and ends with 2 where there is none.
"""
