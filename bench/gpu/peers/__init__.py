"""Our engine next to vLLM, SGLang and transformers: the same checkpoint and requests, in one run.

`checkpoint` writes a target whose greedy token after t is known and an EAGLE-3 head that agrees on
chosen tokens; `engines` are processes that measure cells; `driver` runs them one after another, and
`aims` compares their figures. Without a GPU, sizes are tiny and no figure is a measurement.
"""
