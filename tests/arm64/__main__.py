"""Runs the tests of the C kernels on an emulated 64-bit ARM processor.

The kernels are cross-compiled and called in an emulator; everything else of a test runs here. The
last line is JSON; what of the tests is left out for its length is listed.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from specdecode_kernels.cpu.loading import TYPES
from tests.arm64.toolchain import (
    COMPILER,
    DRIVERS_VARIABLE,
    EMULATOR,
    PROCESSORS,
    Processor,
    ToolchainMissing,
    build_driver,
    install,
)

ROOT = Path(__file__).resolve().parents[2]
TESTS = (
    *(
        "test_elementwise_cpu",
        "test_packed_linear",
        "test_map_heads",
        "test_quantized_weights",
        "test_float4_cpu",
        "test_experts",
        "test_cpu_attention",
    ),
    "test_bookkeeping_cpu",
    "test_gated_delta_cpu",
    "test_processor_bits",
)


@dataclass(frozen=True, slots=True)
class EmulatedRun:
    """What the tests gave on one processor."""

    processor: str
    passed: int
    left_out: int
    seconds: float
    status: int


def main() -> int:
    """Run on each processor; exit status 1 when a test fails or the tools cannot be had."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="make test-arm64", description=__doc__
    )
    parser.add_argument("--only", choices=[each.name for each in PROCESSORS])
    options = parser.parse_args()
    try:
        install()
        chosen = [each for each in PROCESSORS if options.only in (None, each.name)]
        runs = [run_on(processor) for processor in chosen]
    except ToolchainMissing as error:
        print(f"cannot test the kernels for arm64: {error}", file=sys.stderr)
        return 1
    print(json.dumps({run.processor: asdict(run) for run in runs}))
    return 0 if all(run.status == 0 and run.passed for run in runs) else 1


def run_on(processor: Processor) -> EmulatedRun:
    """Build the drivers for a processor and run the tests with them.

    Raises:
        ToolchainMissing: when a driver cannot be built.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        commands = {
            str(dtype).removeprefix("torch."): [
                *(EMULATOR, "-cpu", processor.emulated),
                str(build_driver(Path(folder), dtype, COMPILER, processor.option, is_static=True)),
            ]
            for dtype in TYPES
        }
        print(f"{processor.name}: {COMPILER} {processor.option}, -cpu {processor.emulated}")
        done = _pytest(json.dumps(commands))
    counts = {word: int(count) for count, word in re.findall(r"(\d+) (\w+)", done.stdout[-400:])}
    seconds = round(time.monotonic() - started, 1)
    passed, left_out = counts.get("passed", 0), counts.get("deselected", 0)
    return EmulatedRun(processor.name, passed, left_out, seconds, done.returncode)


def _pytest(drivers: str) -> subprocess.CompletedProcess[str]:
    files = [str(ROOT / "tests" / "kernels" / f"{name}.py") for name in TESTS]
    options = ("-q", "-p", "no:cacheprovider", "-p", "tests.arm64.plugin", "--durations=5")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files],
        env=os.environ | {DRIVERS_VARIABLE: drivers},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    print(done.stdout, flush=True)
    return done


if __name__ == "__main__":
    sys.exit(main())
