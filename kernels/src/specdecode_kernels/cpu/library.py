"""The C kernels as a library for one type: compiled for this processor once, kept, and loaded.

The compiler is the machine's own (`CC`, gcc or cc), as for Triton's launchers; options in `CC` come
last and win. The library is kept in the user's cache, named by a hash of sources, compiler,
options and processor.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch

log = logging.getLogger(__name__)

Loaded = TypeVar("Loaded")

CACHE_VARIABLE = "SPECDECODE_CACHE"
"""Folder for what is compiled; `specdecode` in the user's cache where it is not set."""

TYPES = {torch.float32: "", torch.bfloat16: "-DBFLOAT16"}
# Tunings of some x86 processors split a fused multiply-add of wide vectors in some copies of a loop
# and not in others; a row would then depend on the loop that computes it.
_FUSE_ALWAYS = ("--param=avoid-fma-max-bits=0",) if platform.machine() == "x86_64" else ()
FLAGS = (
    *("-std=gnu11", "-O3", "-march=native", "-Wno-psabi", "-fopenmp", "-fPIC", "-shared"),
    *_FUSE_ALWAYS,
)
# Steps of a linear map after which the next rows take their turn with the same weights. On an Intel
# Xeon, 16 to 64 rows take 6 to 15 % less time with weights that stay in its first cache; 768 rows
# of 2,048 inputs would take 21 % more.
_INTEL = ("-DSLAB_CUT=64",)
COMPILE_TIMEOUT_S = 120

_FOLDER = Path(__file__).parent
SOURCES = tuple(_FOLDER / name for name in ("linear.c", "experts.c", "elementwise.c", "attend.c"))
HEADERS = tuple(_FOLDER / name for name in ("vectors.h", "linear.h"))

_ADDRESS, _COUNT, _NUMBER = ctypes.c_void_p, ctypes.c_long, ctypes.c_float
_SMALL = {
    "rms_norm": [*[_ADDRESS, _COUNT] * 2, _NUMBER, _ADDRESS, _COUNT, _COUNT],
    "add_rms_norm": [*[_ADDRESS, _COUNT] * 3, _NUMBER, *[_ADDRESS] * 2, *[_COUNT] * 2],
    "apply_rope": [*[_ADDRESS, _COUNT, _COUNT] * 2, _ADDRESS, _ADDRESS, _COUNT, _COUNT],
    "silu_and_mul": [*[_ADDRESS, _COUNT] * 2, _ADDRESS, _COUNT, _COUNT],
    "gelu_tanh_and_mul": [*[_ADDRESS, _COUNT] * 2, _ADDRESS, _COUNT, _COUNT],
    "softcap": [_ADDRESS, _NUMBER, _ADDRESS, _COUNT],
    "store_kv": [*[_ADDRESS] * 3, *[_ADDRESS, _COUNT] * 2, *[_COUNT] * 3],
}
_LARGE = {
    "pack": [_ADDRESS, _ADDRESS, _COUNT, _COUNT],
    "linear": [_ADDRESS, _ADDRESS, _COUNT, _ADDRESS, _ADDRESS, *[_COUNT] * 3],
    "experts": [*[_ADDRESS] * 5, _COUNT, *[_ADDRESS] * 7],
    "attend": [*[_ADDRESS] * 3, _COUNT, *[_ADDRESS] * 3, *[_COUNT] * 4, _ADDRESS],
}
SIGNATURES = {**_SMALL, **_LARGE}
"""Argument types of every function in C."""


class CannotCompile(Exception):
    """There is no library for this machine; the message has the reason."""


class Library:
    """The functions for tensors of one type, by their names in C.

    The small ones keep Python's lock: to give it up and get it back takes longer than they do.
    """

    rms_norm: Callable[..., None]
    add_rms_norm: Callable[..., None]
    apply_rope: Callable[..., None]
    silu_and_mul: Callable[..., None]
    gelu_tanh_and_mul: Callable[..., None]
    softcap: Callable[..., None]
    store_kv: Callable[..., None]
    pack: Callable[..., None]
    linear: Callable[..., None]
    experts: Callable[..., None]
    attend: Callable[..., None]

    def __init__(self, file: Path, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.fingerprint = file.stem
        name = str(file)
        for loaded, functions in ((ctypes.PyDLL(name), _SMALL), (ctypes.CDLL(name), _LARGE)):
            for called, arguments in functions.items():
                function = getattr(loaded, called)
                function.argtypes, function.restype = arguments, None
                setattr(self, called, function)


def unsupported_reason(dtype: torch.dtype) -> str | None:
    """Return why the kernels for a type cannot run here, None if they can; compiles them."""
    found = _library(dtype)
    return found if isinstance(found, str) else None


def load_library(dtype: torch.dtype) -> Library:
    """Load the library for a type, compiled at the first use.

    Raises:
        CannotCompile: with `unsupported_reason`.
    """
    found = _library(dtype)
    if isinstance(found, str):
        raise CannotCompile(found)
    return found


def numerics(dtype: torch.dtype) -> str:
    """Return a name for what the bits of results depend on: compiled kernels, or the processor."""
    found = _library(dtype)
    if isinstance(found, Library):
        return found.fingerprint
    return hashlib.sha256(_abilities().encode()).hexdigest()[:24]


@cache
def _library(dtype: torch.dtype) -> Library | str:
    if dtype not in TYPES:
        return f"float32 and bfloat16 have kernels for a CPU, not {dtype}"
    try:
        return _load(dtype)
    except (CannotCompile, OSError) as error:
        log.warning("no kernels for this CPU, plain torch computes: %s", error)
        return str(error)


def _load(dtype: torch.dtype) -> Library:
    define = TYPES[dtype]
    flags = (*FLAGS, *(_INTEL if "GenuineIntel" in _cpuinfo() else ()))
    flags = (*flags, define) if define else flags
    return compile_library(SOURCES, HEADERS, flags, lambda file: Library(file, dtype))


def compile_library(
    sources: tuple[Path, ...],
    headers: tuple[Path, ...],
    flags: tuple[str, ...],
    load: Callable[[Path], Loaded],
) -> Loaded:
    """Load a library that was compiled before, or compile it first.

    Raises:
        CannotCompile: there is no compiler, or it fails.
        OSError: the cache cannot be written.
    """
    files = (*sources, *headers)
    try:
        return load(_compiled(sources, files, flags))
    except OSError:  # cut short by a full disk, or from a machine with another C library
        _compiled(sources, files, flags).unlink()
        return load(_compiled(sources, files, flags))


def _compiled(sources: tuple[Path, ...], files: tuple[Path, ...], flags: tuple[str, ...]) -> Path:
    """Find the library that was made before, or make it."""
    compiler, *given = _compiler()
    options = [*flags, *given]
    folder = _folder()
    file = folder / f"{_fingerprint(compiler, options, files)}.so"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".part", delete=False) as part:
            _compile([compiler, *options, *map(str, sources)], Path(part.name))
        Path(part.name).replace(file)  # whole or not at all, whoever else compiles just now
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
        said = getattr(error, "stderr", None) or str(error)
        first = next((line for line in said.splitlines() if "error" in line), said.strip())
        raise CannotCompile(f"{command[0]} cannot compile them: {first}") from None


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
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _version(compiler: str) -> str:
    try:
        asked = [compiler, "-dumpfullversion", "-dumpmachine"]
        return subprocess.run(asked, check=True, capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotCompile(f"{compiler} does not run: {error}") from None


def _abilities() -> str:
    lines = _cpuinfo().splitlines()
    told = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(told)}))


def _cpuinfo() -> str:
    return Path("/proc/cpuinfo").read_text(encoding="utf-8")


def _folder() -> Path:
    wanted = os.environ.get(CACHE_VARIABLE, "")
    if wanted:
        return Path(wanted) / "cpu"
    base = os.environ.get("XDG_CACHE_HOME", "") or "~/.cache"
    return Path(base).expanduser() / "specdecode" / "cpu"
