"""How fast each kernel is beside its plain torch twin: `PYTHONPATH=bench python -m kernels.<op>`.

One module per op, with the name of the op's kernel, reference and test. Needs a GPU to run.
"""
