"""What the engine does on one GPU, beside the machine's own limits and beside peers, in one run.

`bench/gpu.py` is the entry. Weights are random, in the shape of an 8B Llama, made on the device;
target and draft agree as much as a dial says (`epsilon`), so nothing has to be carried but code.
Without a GPU everything runs at tiny sizes, and no number of that means anything.
"""
