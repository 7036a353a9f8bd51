"""A pytest plugin that replaces the C kernels of this processor by those of running drivers."""

import json
import os
import re
from collections.abc import Iterator

import pytest
import torch

from specdecode_kernels.cpu import library
from tests.arm64.remote import Driver, RemoteLibrary
from tests.arm64.toolchain import DRIVERS_VARIABLE

LEFT_OUT = re.compile(
    r"however_many_there_are\[shape[0-35]-"
    r"|alone_in_a_run_and_beside_others\[\d-(40|64|96|128)-"
)
"""Tests that take minutes in an emulator; the same tests with smaller shapes run."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave tests out, and list each."""
    left_out = [item for item in items if LEFT_OUT.search(item.name)]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)
    for item in left_out:
        print(f"left out, it takes too long in an emulator: {item.name}")


def _start(dtype: torch.dtype) -> Driver:
    commands = json.loads(os.environ[DRIVERS_VARIABLE])
    return Driver(commands[str(dtype).removeprefix("torch.")])


def _replace(drivers: dict[torch.dtype, Driver]) -> None:
    remote = {dtype: RemoteLibrary(driver, dtype) for dtype, driver in drivers.items()}

    def of(dtype: torch.dtype) -> library.Library | str:
        return remote.get(dtype) or f"float32 and bfloat16 have kernels for a CPU, not {dtype}"

    library._library = of  # type: ignore[assignment]


_drivers = {dtype: _start(dtype) for dtype in library.TYPES}
_replace(_drivers)  # before any test module builds its backends


@pytest.fixture(autouse=True, scope="session")
def _end_drivers() -> Iterator[None]:
    yield
    for driver in _drivers.values():
        driver.close()
