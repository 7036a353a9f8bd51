"""Random speculative runs against plain decoding: the texts must be equal, to the letter.

`cases` draws what to run, `run` runs it on a real engine core with real checkpoints, `compare`
says where two answers differ. Weights are computed in float64, so that equality is a statement
about the algorithm and not about rounding; `--dtype float32` measures the rounding.
"""
