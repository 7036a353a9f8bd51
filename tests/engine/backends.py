"""Engines whose backends check the arguments of every op and count its calls."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from specdecode_engine.startup import config
from specdecode_kernels import Choice, choose_backend
from specdecode_kernels.testing import LaunchCounter, checked


@contextmanager
def counted_launches() -> Iterator[LaunchCounter]:
    """Wrap the backends of the engines that are built meanwhile."""
    counter = LaunchCounter()

    def choose(*arguments: Any, **named: Any) -> Choice:
        choice = choose_backend(*arguments, **named)
        return choice._replace(backend=checked(counter.wrap(choice.backend)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "choose_backend", choose)
        yield counter
