"""For tests and benchmarks: random arguments, checked and counting backends, the interpreter."""

from specdecode_kernels.testing.attention import (
    DEVICE,
    AttentionArgs,
    Shape,
    draw_case,
    seen_rows,
)
from specdecode_kernels.testing.checked import checked
from specdecode_kernels.testing.interpreter import mended_interpreter
from specdecode_kernels.testing.launch_counter import OPS, LaunchCounter, implementation_of
from specdecode_kernels.testing.op_calls import (
    backend_of,
    call_experts,
    call_gated_delta,
    call_weight,
    calls,
)

__all__ = [
    "DEVICE",
    "OPS",
    "AttentionArgs",
    "LaunchCounter",
    "Shape",
    "backend_of",
    "call_experts",
    "call_gated_delta",
    "call_weight",
    "calls",
    "checked",
    "draw_case",
    "implementation_of",
    "mended_interpreter",
    "seen_rows",
]
