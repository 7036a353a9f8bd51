"""By what the ops are computed for a while: the variable that `implementation_for` reads."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from specdecode_kernels.implementation import VARIABLE, Implementation


@contextmanager
def computed_by(way: Implementation) -> Iterator[None]:
    """Force one implementation of every op."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = way
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
