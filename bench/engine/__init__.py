"""How fast the engine decodes: accept length and tokens per CPU second, beside plain decoding.

One thread, processor time, configurations interleaved within each repeat, medians. Decoding on a
CPU in float32 keeps rows equal to the bit, which slows single rows more than several
(docs/decisions/0001): ratios to plain decoding flatter speculation here and say nothing of a GPU.
"""
