"""One thread per process: the machine is shared, and tiny tensors gain nothing from more."""

import pytest
import torch

from specdecode_kernels.implementation import VARIABLE

torch.set_num_threads(1)


@pytest.fixture
def device() -> torch.device:
    """Where kernels run: a GPU where there is one, else Triton's interpreter on the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def by_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Public ops take their kernels, on a CPU too."""
    monkeypatch.setenv(VARIABLE, "triton")
