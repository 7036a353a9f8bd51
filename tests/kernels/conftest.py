"""One thread per process, and Triton's interpreter made to work with this numpy."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch

from specdecode_kernels.implementation import VARIABLE
from specdecode_kernels.testing import computed_loop_bounds

torch.set_num_threads(1)


HAS_TRITON = find_spec("triton") is not None
collect_ignore_glob = [] if HAS_TRITON else ["*_triton.py", "test_tiles.py", "test_compile*.py"]


@pytest.fixture
def device() -> torch.device:
    """Where kernels run: a GPU where there is one, else Triton's interpreter on the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def by_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Public ops take their kernels, on a CPU too."""
    monkeypatch.setenv(VARIABLE, "triton")


@pytest.fixture(autouse=HAS_TRITON, scope="session")
def _interpreter() -> Iterator[None]:
    with computed_loop_bounds():
        yield
