"""The engine on one GPU, compared with the machine's own limits and with peers, in one run.

`python bench/gpu` is the entry. Weights are random, in the shape of an 8B Llama, made on the
device; `epsilon` sets how much target and draft agree, so nothing has to be carried but code.
Without a GPU everything runs at tiny sizes, and no number of that means anything.
"""
