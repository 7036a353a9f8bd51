"""One thread per process, and Triton's interpreter made to work with this numpy."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from specdecode_kernels.testing import mended_interpreter

torch.set_num_threads(1)


HAS_TRITON = find_spec("triton") is not None
NEED_TRITON = [
    *("*_triton.py", "test_compile_gate.py", "test_op_parts.py", "test_spans.py", "test_tiles.py"),
    "test_table.py",
]
collect_ignore_glob = [] if HAS_TRITON else NEED_TRITON


@pytest.fixture
def device() -> torch.device:
    """Where kernels run: a GPU where there is one, else Triton's interpreter on the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=HAS_TRITON, scope="session")
def _interpreter() -> Iterator[None]:
    with mended_interpreter():
        yield


@pytest.fixture
def row_independent_dot(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    """Let the interpreter's products add input by input, as BLAS may treat rows differently.

    So what a kernel's rows depend on is the kernel alone.
    """
    if device.type == "cuda":
        return
    from triton.runtime import interpreter

    def create_dot(_: Any, a: Any, b: Any, sums: Any, *options: Any) -> Any:
        total = sums.data.copy()
        for at in range(a.data.shape[1]):
            total += a.data[:, at, None].astype(total.dtype) * b.data[at]
        return interpreter.TensorHandle(total, sums.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)
