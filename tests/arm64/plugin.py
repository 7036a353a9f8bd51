"""A pytest plugin that replaces the C kernels of this processor by those of running drivers."""

import json
import os
import re
from collections.abc import Iterator

import pytest
import torch

from specdecode_kernels.cpu import loading
from specdecode_kernels.cpu.library import Library
from tests.arm64.remote import Driver, RemoteLibrary
from tests.arm64.toolchain import DRIVERS_VARIABLE

LEFT_OUT = {
    "it takes too long in an emulator": re.compile(
        r"however_many_there_are\[shape[0-35]-"
        r"|alone_in_a_run_and_beside_others\[\d-(40|64|96|128)-"
    ),
    "kernels run in another process, whose memory it is not about": re.compile(
        r"test_packing_releases_the_memory_of_a_weight_that_is_given_away"
    ),
}
"""Why tests are left out. Of those that take long, the same tests with smaller shapes run."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave tests out, and list each."""
    reasons = {item: reason for item in items if (reason := _why_left_out(item.name))}
    items[:] = [item for item in items if item not in reasons]
    config.hook.pytest_deselected(items=list(reasons))
    for item, reason in reasons.items():
        print(f"left out, {reason}: {item.name}")


def _why_left_out(name: str) -> str:
    return next((reason for reason, names in LEFT_OUT.items() if names.search(name)), "")


def _start(dtype: torch.dtype) -> Driver:
    commands = json.loads(os.environ[DRIVERS_VARIABLE])
    return Driver(commands[str(dtype).removeprefix("torch.")])


def _replace(drivers: dict[torch.dtype, Driver]) -> None:
    remote = {dtype: RemoteLibrary(driver, dtype) for dtype, driver in drivers.items()}

    def of(dtype: torch.dtype) -> Library | str:
        return remote.get(dtype) or f"float32 and bfloat16 have kernels for a CPU, not {dtype}"

    loading._library = of  # type: ignore[assignment]


_drivers = {dtype: _start(dtype) for dtype in loading.TYPES}
_replace(_drivers)  # before any test module builds its backends


@pytest.fixture(autouse=True, scope="session")
def _end_drivers() -> Iterator[None]:
    yield
    for driver in _drivers.values():
        driver.close()
