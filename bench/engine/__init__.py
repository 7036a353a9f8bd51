"""How fast the engine decodes: beside peers, beside its own plain decoding, and its host's share.

`versus` compares with transformers and OpenVINO GenAI (package `peers`), `host` times the prefix
cache and the host's part of a round, `adaptive` and `crossing` hold adaptive depth against fixed
ones, `algorithms` tells accept lengths. One thread, processor time, everybody interleaved within
each repeat, medians.
"""
