"""By what the ops are computed for a while: variables that the kernels read."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from specdecode_kernels.implementation import VARIABLE, Implementation
from specdecode_kernels.native import linear


def computed_by(way: Implementation) -> AbstractContextManager[None]:
    """Force one implementation of every op."""
    return _variable(VARIABLE, way)


def plain_weights() -> AbstractContextManager[None]:
    """Pack no weights, so that they can be changed in place on a CPU too."""
    return _variable(linear.VARIABLE, "plain")


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
