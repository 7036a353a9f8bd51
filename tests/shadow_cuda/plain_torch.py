"""Torch without the shadow device."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def plain_torch() -> Iterator[None]:
    """Compute on CPU tensors within the body, unseen by the shadow device."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        yield
