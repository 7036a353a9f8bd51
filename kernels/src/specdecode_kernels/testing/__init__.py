"""Arguments for tests and benchmarks of the ops: random attentions, and one call of every op."""

from specdecode_kernels.testing.attention import DEVICE, Case, Shape, draw_case, seen_rows
from specdecode_kernels.testing.every_op import calls

__all__ = ["DEVICE", "Case", "Shape", "calls", "draw_case", "seen_rows"]
