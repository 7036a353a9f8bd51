"""The cross compiler and the emulator from Debian, and drivers built with them."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch

from specdecode_kernels.cpu.compile import FLAGS
from specdecode_kernels.cpu.loading import SOURCES, TYPES

DRIVER = Path(__file__).with_name("driver.c")
DRIVERS_VARIABLE = "SPECDECODE_DRIVERS"
"""Commands of the drivers as JSON, by type: {"float32": [...], ...}; for `plugin.py`."""

COMPILER = "aarch64-linux-gnu-gcc"
EMULATOR = "qemu-aarch64"
PACKAGES = {
    COMPILER: "gcc-aarch64-linux-gnu",
    "/usr/aarch64-linux-gnu/include/stdio.h": "libc6-dev-arm64-cross",
    EMULATOR: "qemu-user",
}
"""Program or file -> the Debian package that has it."""

_OF_THIS_PROCESSOR = ("-march=native", "--param", "-fPIC", "-shared")
_BUILD_TIMEOUT_S = 300


class ToolchainMissing(RuntimeError):
    """What cannot be installed or built, with the command that failed."""


@dataclass(frozen=True, slots=True)
class Processor:
    """A level of the architecture: the compiler's option for it, and the CPU that is emulated."""

    name: str
    option: str
    emulated: str


PROCESSORS = (
    Processor("neon", "-march=armv8-a", "cortex-a72"),
    Processor("sve", "-mcpu=neoverse-v1", "max,sve256=on"),
)
"""Every 64-bit ARM server; Graviton 3 and later, Grace (SVE, bfloat16 instructions)."""


def missing_packages() -> list[str]:
    """List the Debian packages still to be installed."""
    return [package for proof, package in PACKAGES.items() if not shutil.which(proof, mode=0)]


def install() -> None:
    """Install what is missing.

    Raises:
        ToolchainMissing: when apt-get cannot.
    """
    missing = missing_packages()
    if missing:
        command = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
        _run(command, "run `apt-get update` as root, or install these packages by hand", 600)


def build_driver(
    folder: Path, dtype: torch.dtype, compiler: str, option: str, *, is_static: bool
) -> Path:
    """Compile driver.c and the kernels for a type; the flags are those of the kernels' library.

    Raises:
        ToolchainMissing: with the compiler's message.
    """
    program = folder / f"driver-{str(dtype).removeprefix('torch.')}"
    kept = [flag for flag in FLAGS if not flag.startswith(_OF_THIS_PROCESSOR)]
    defines = [TYPES[dtype]] if TYPES[dtype] else []
    sources = [str(DRIVER), *map(str, SOURCES)]
    linked = ["-static"] if is_static else []
    command = [compiler, *kept, option, *defines, *linked, *sources, "-lm", "-o", str(program)]
    _run(command, "look at the compiler's message", _BUILD_TIMEOUT_S)
    return program


def _run(command: list[str], remedy: str, timeout_s: float) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainMissing(f"cannot run {command[0]}: {error}; {remedy}") from error
    if done.returncode != 0:
        words = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise ToolchainMissing(f"{' '.join(command)} failed; {remedy}:\n{words}")
