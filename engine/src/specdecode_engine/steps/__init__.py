"""What one step computes on tensors: prompt chunks are prefilled, running requests are decoded.

Decoding is draft, verify, commit; with 0 draft steps it is plain decoding, on the same path. The
host reads the result of a step once, when the step is collected.
"""
