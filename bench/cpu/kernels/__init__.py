"""Speed of each kernel and of its torch reference: `PYTHONPATH=. python -m bench.cpu.kernels.<op>`.

One module per op, with the name of the op's kernel, reference and test, and what can be found out
without a GPU. Each prints lines of JSON, with the device and the versions it ran with. What needs a
GPU reports that and ends with 2 where there is none.
"""
