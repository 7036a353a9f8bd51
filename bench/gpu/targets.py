"""The bounds that each figure must meet; docs/gpu.md describes them."""

from bench.gpu.record import Target

PARITY = Target("≤", 1.0)
"""Largest difference between kernel and reference, over what rounding allows."""
LOSSLESS = Target("≤", 0)
WAITS = Target("≤", 0)
SAME_ANSWERS = Target("≥", 1)

DECODE_SHARE = Target("≥", 0.75, "ratio")  # G1
STEP_SHARE = Target("≥", 0.65, "ratio")  # G2
ATTENTION_SHARE = Target("≥", 0.75, "ratio")  # G3, where keys and values are LARGE_KV_BYTES
LARGE_KV_BYTES = 256 << 20
TO_FLASHINFER = Target("≥", 0.9)  # G3
VERIFY_OVER_DECODE = Target("≤", 1.15)  # G4, up to WIDE_QUERIES rows
WIDE_QUERIES = 8
KERNEL_US = Target("≤", 10)  # G5
FEWER_LAUNCHES = Target("≥", 3)  # G5
CAPTURE_S = Target("≤", 0.1)  # G6
GRAPH_MIB = Target("≤", 8)  # G6
SWAP_US = Target("≤", 20)  # G6
IDLE_SHARE = Target("≤", 0.05)  # G7
OVERLAP_GAIN = Target("≥", 0.05)  # G7
SAME_BITS = Target("≤", 0)
FASTER = Target("≤", 1)
TO_BEST_STATIC = Target("≥", 0.97)  # G8
TO_NO_SPECULATION = Target("≥", 0.98)  # G8
