"""Kernels called through driver.c, here without an emulator, get the memory that they touch."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from specdecode_kernels.cpu.loading import TYPES
from tests.arm64.image import Image, Link, Span, Touched, merge
from tests.arm64.remote import Driver, DriverFailed, RemoteLibrary
from tests.arm64.toolchain import DRIVERS_VARIABLE, build_driver

FLOAT32 = torch.float32
HERE = Path(__file__).parent


def build(folder: Path, dtype: torch.dtype) -> Path:
    """A driver for this machine, whose kernels may use all of its processor."""
    return build_driver(folder, dtype, "gcc", "-march=native", is_static=False)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    running = Driver([build(tmp_path_factory.mktemp("driver"), FLOAT32)])
    yield running
    running.close()


def test_spans_that_overlap_are_one_region() -> None:
    parts = [Span(8, 16), Span(0, 4), Span(12, 20, is_written=True), Span(20, 24), Span(30, 30)]
    assert merge(parts) == [Span(0, 4), Span(8, 20, is_written=True), Span(20, 24)]


def test_an_address_is_a_region_and_an_offset() -> None:
    image = Image(Touched([Span(64, 96), Span(96, 128)], [Link(70, 100), Link(70, 500)]))
    assert image.pointer(100) == (1).to_bytes(8, "little") + (4).to_bytes(8, "little")
    assert image.holds(127)
    assert not image.holds(128)
    assert not image.holds(63)


def test_rows_between_others_are_computed_and_nothing_else_is_touched(driver: Driver) -> None:
    wide = torch.full((4, 10), torch.nan)
    x = wide[::2, 2:8]
    x.copy_(torch.randn(2, 6, generator=torch.Generator().manual_seed(0)))
    out, weight = torch.full((3, 6), 7.0), torch.ones(6)
    addresses = x.data_ptr(), x.stride(0), weight.data_ptr()
    RemoteLibrary(driver, FLOAT32).rms_norm(*addresses, False, 1e-5, out.data_ptr(), 2, 6)
    wanted = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)
    torch.testing.assert_close(out[:2], wanted)
    assert torch.equal(out[2], torch.full((6,), 7.0))


def test_a_driver_that_refuses_reports_why(tmp_path: Path) -> None:
    refusing = Driver([build(tmp_path, FLOAT32)])
    with pytest.raises(DriverFailed, match="ended with 1: driver: an unknown function"):
        refusing.call(b"".join(word.to_bytes(8, "little") for word in (99, 1, 0, 0, 0)), 1)


def test_the_kernels_tests_pass_through_drivers(tmp_path: Path) -> None:
    """As `make test-arm64` runs them in an emulator."""
    commands = {str(dtype).removeprefix("torch."): [str(build(tmp_path, dtype))] for dtype in TYPES}
    names = [
        f"test_{name}.py"
        for name in ("elementwise_cpu", "cpu_attention", "bookkeeping_cpu", "map_heads")
    ]
    options = ["-q", "-p", "no:cacheprovider", "-p", "tests.arm64.plugin"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *map(str, map(HERE.joinpath, names))],
        env=os.environ | {DRIVERS_VARIABLE: json.dumps(commands)},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
    assert " deselected" in done.stdout
