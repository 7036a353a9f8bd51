"""For tests and benchmarks of the ops: random attentions, a call of every op, the interpreter."""

from specdecode_kernels.testing.attention import DEVICE, Case, Shape, draw_case, seen_rows
from specdecode_kernels.testing.every_op import backend_for, calls
from specdecode_kernels.testing.interpreter import computed_loop_bounds

__all__ = [
    "DEVICE",
    "Case",
    "Shape",
    "backend_for",
    "calls",
    "computed_loop_bounds",
    "draw_case",
    "seen_rows",
]
