"""Engines whose weights can be changed in place."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from specdecode_kernels.choice import LINEARS_VARIABLE


@contextmanager
def plain_weights() -> Iterator[None]:
    """Pack no weights, so that they can be changed in place on a CPU too."""
    before = os.environ.get(LINEARS_VARIABLE)
    os.environ[LINEARS_VARIABLE] = "plain"
    try:
        yield
    finally:
        if before is None:
            del os.environ[LINEARS_VARIABLE]
        else:
            os.environ[LINEARS_VARIABLE] = before
