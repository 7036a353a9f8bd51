"""Random speculative runs against plain decoding: the texts must be equal, to the letter.

`cases` draws what to run, `run` runs it on a real engine core with real checkpoints, `compare`
reports where two answers differ. The engine's float32 rows on a CPU do not depend on what they are
computed with, so equality is to the letter; `--dtype float64` takes rounding out altogether.
"""
