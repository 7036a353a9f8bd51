"""Compiles C sources into a library for this processor once, and keeps it.

The compiler is the machine's own (`CC`, gcc or cc), as for Triton's launchers; options in `CC` come
last and win. The library is kept in the user's cache, named by a hash of sources, compiler,
options and processor. Images contain libraries for levels of x86-64 (`precompile_cpu`), which
are taken first unless `CC` is set.
"""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

Loaded = TypeVar("Loaded")

CACHE_VARIABLE = "SPECDECODE_CACHE"
"""Folder for what is compiled; `specdecode` in the user's cache where it is not set."""

# Tunings of some x86 processors split a fused multiply-add of wide vectors in some copies of a loop
# and not in others; a row would then depend on the loop that computes it.
_FUSE_ALWAYS = ("--param=avoid-fma-max-bits=0",) if platform.machine() == "x86_64" else ()
_FOR_PROCESSOR = "-march=native"
FLAGS = (
    *("-std=gnu11", "-O3", _FOR_PROCESSOR, "-Wno-psabi", "-fopenmp", "-fPIC", "-shared"),
    *_FUSE_ALWAYS,
)
COMPILE_TIMEOUT_S = 300

PRECOMPILED = Path(__file__).parent / "precompiled"
"""Folder of the libraries that an image contains."""
_V3 = frozenset(("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"))
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
LEVELS = {
    "x86-64-v4+avx512bf16+avx512vbmi": _V4 | {"avx512_bf16", "avx512vbmi"},
    "x86-64-v4": _V4,
    "x86-64-v3": _V3,
}
"""Levels, perhaps with more instructions, the fastest first; and their flags in /proc/cpuinfo."""


class CannotCompile(Exception):
    """There is no library for this machine; the message has the reason."""


def compile_library(
    sources: tuple[Path, ...],
    headers: tuple[Path, ...],
    flags: tuple[str, ...],
    load: Callable[[Path], Loaded],
) -> Loaded:
    """Load a library that was compiled before, or compile it first.

    Raises:
        CannotCompile: there is no compiler, it fails, or the cache cannot be written.
    """
    files = (*sources, *headers)
    for file in _precompiled(files, flags):
        with suppress(OSError):  # for a machine with another C library
            return load(file)
    try:
        return load(_compiled(sources, files, flags))
    except OSError:  # cut short by a full disk, or from a machine with another C library
        _compiled(sources, files, flags).unlink()
        return load(_compiled(sources, files, flags))


def precompile(
    sources: tuple[Path, ...], headers: tuple[Path, ...], flags: tuple[str, ...], level: str
) -> Path:
    """Compile a library for every processor of a level of x86-64, and return it.

    Raises:
        CannotCompile: there is no compiler, or it fails.
    """
    file = _precompiled_file((*sources, *headers), flags, level)
    file.parent.mkdir(exist_ok=True)
    _compile([*_compiler(), *_for_level(flags, level), *map(str, sources)], file)
    return file


def measurements_file(library: Path) -> Path:
    """Return the file for what is measured of a library on this processor."""
    return _folder() / f"{library.stem}-{processor_fingerprint()}.json"


def _precompiled(files: tuple[Path, ...], flags: tuple[str, ...]) -> Iterator[Path]:
    """Yield the libraries of the image that run on this processor, the best one first.

    Libraries that are not compiled for the processor at hand are in no image.
    """
    if os.environ.get("CC") or _FOR_PROCESSOR not in flags or not PRECOMPILED.exists():
        return
    abilities = processor_flags()
    for level, needed in LEVELS.items():
        if needed <= abilities and (file := _precompiled_file(files, flags, level)).exists():
            yield file


def _precompiled_file(files: tuple[Path, ...], flags: tuple[str, ...], level: str) -> Path:
    parts = [*_for_level(flags, level), *(file.read_text() for file in files)]
    return PRECOMPILED / f"{level}-{_digest(parts)}.so"


def _for_level(flags: tuple[str, ...], level: str) -> list[str]:
    base, *more = level.split("+")
    options = [f"-march={base}", *(f"-m{one}" for one in more)]
    at = flags.index(_FOR_PROCESSOR)
    return [*flags[:at], *options, *flags[at + 1 :]]


def _compiled(sources: tuple[Path, ...], files: tuple[Path, ...], flags: tuple[str, ...]) -> Path:
    """Find the library that was made before, or make it."""
    compiler, *given = _compiler()
    options = [*flags, *given]
    folder = _folder()
    file = folder / f"{_fingerprint(compiler, options, files)}.so"
    if not file.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor, part = tempfile.mkstemp(dir=folder, suffix=".part")
        except OSError as error:
            remedy = f"make it writable, or set {CACHE_VARIABLE} to a folder that is"
            reason = f"{folder} cannot be written ({error.strerror}): {remedy}"
            raise CannotCompile(reason) from None
        os.close(descriptor)
        _compile([compiler, *options, *map(str, sources)], Path(part))
        Path(part).replace(file)  # whole or not at all, whoever else compiles just now
    return file


def _compile(command: list[str], to: Path) -> None:
    try:
        subprocess.run(
            [*command, "-o", str(to)],
            check=True,
            capture_output=True,
            text=True,
            timeout=COMPILE_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError) as error:
        to.unlink(missing_ok=True)
        output = getattr(error, "stderr", None) or str(error)
        # collect2 only reports that the linker, whose last line has the reason, has failed.
        lines = [line for line in output.splitlines() if not line.startswith("collect2:")]
        reason = next((line for line in lines if "error" in line), "".join(lines[-1:]))
        raise CannotCompile(f"{command[0]} cannot compile them: {reason}") from None


def _compiler() -> list[str]:
    wanted = os.environ.get("CC", "")
    if wanted:
        return shlex.split(wanted)
    for name in ("gcc", "cc"):
        if shutil.which(name):
            return [name]
    raise CannotCompile("there is no C compiler; install gcc and libc6-dev, or set CC")


def _fingerprint(compiler: str, options: list[str], files: tuple[Path, ...]) -> str:
    """Name what the result depends on: the sources, the compiler, the processor's abilities."""
    parts = [shlex.join([compiler, *options]), _version(compiler), _abilities()]
    parts += [file.read_text() for file in files]
    return _digest(parts)


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _version(compiler: str) -> str:
    try:
        asked = [compiler, "-dumpfullversion", "-dumpmachine"]
        return subprocess.run(asked, check=True, capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotCompile(f"{compiler} does not run: {error}") from None


def processor_fingerprint() -> str:
    """Name the processor by its model and abilities."""
    return _digest([_abilities()])


def _abilities() -> str:
    lines = _cpuinfo().splitlines()
    identifying = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(identifying)}))


def processor_flags() -> set[str]:
    """Return the flags of the first processor in /proc/cpuinfo, such as "fma"."""
    lines = (line for line in _cpuinfo().splitlines() if line.startswith("flags"))
    return set(next(lines, "").split())


def _cpuinfo() -> str:
    return Path("/proc/cpuinfo").read_text(encoding="utf-8")


def _folder() -> Path:
    wanted = os.environ.get(CACHE_VARIABLE, "")
    if wanted:
        return Path(wanted) / "cpu"
    base = os.environ.get("XDG_CACHE_HOME", "") or "~/.cache"
    return Path(base).expanduser() / "specdecode" / "cpu"
