"""One thread per process, and Triton's interpreter made to work with this numpy."""

from importlib.util import find_spec

import pytest
import torch

from specdecode_kernels.implementation import VARIABLE

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
def bounds_of_interpreted_loops():
    """Let a loop run to a bound that was computed.

    Triton 3.6 makes an index of an array of one element by int(), which numpy 2.4 refuses.
    """
    from triton.runtime import interpreter

    original = interpreter._patch_lang_tensor

    def patch(tensor, scope) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch
    yield
    interpreter._patch_lang_tensor = original
