"""The C kernels as a library for one type, compiled and tuned for this processor once."""

import ctypes
import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import torch

from specdecode_kernels.cpu import tuning
from specdecode_kernels.cpu.compile import (
    FLAGS,
    CannotCompile,
    compile_library,
    measurements_file,
    processor_fingerprint,
)
from specdecode_kernels.cpu.timed_maps import TimedMaps, one_thread
from specdecode_kernels.cpu.tuning import Tuning

log = logging.getLogger(__name__)

TUNING_VARIABLE = "SPECDECODE_TUNING"
"""`default` leaves out the measurement at the first start, and what it found before."""

TYPES = {torch.float32: "", torch.bfloat16: "-DBFLOAT16"}

_FOLDER = Path(__file__).parent
SOURCES = tuple(
    _FOLDER / f"{name}.c"
    for name in (
        "linear",
        "tile",
        "tuning",
        "packing",
        "experts",
        "elementwise",
        "attend",
        "gated_delta",
        "decoder_layer",
        "bookkeeping",
    )
)
HEADERS = tuple(
    _FOLDER / f"{name}.h"
    for name in ("vectors", "formats", "tile", "linear", "tuning", "attend", "gated_delta")
)

_ADDRESS, _COUNT, _NUMBER = ctypes.c_void_p, ctypes.c_long, ctypes.c_float
_SMALL: dict[str, list[type]] = {
    "rms_norm": [*[_ADDRESS, _COUNT] * 2, _NUMBER, _ADDRESS, _COUNT, _COUNT],
    "add_rms_norm": [*[_ADDRESS, _COUNT] * 3, _NUMBER, *[_ADDRESS] * 2, *[_COUNT] * 2],
    "apply_rope": [*[_ADDRESS, _COUNT, _COUNT] * 2, _ADDRESS, _ADDRESS, _COUNT, _COUNT],
    "silu_and_mul": [*[_ADDRESS, _COUNT] * 2, _ADDRESS, _COUNT, _COUNT],
    "gelu_tanh_and_mul": [*[_ADDRESS, _COUNT] * 2, _ADDRESS, _COUNT, _COUNT],
    "softcap": [_ADDRESS, _NUMBER, _ADDRESS, _COUNT],
    "store_kv": [*[_ADDRESS] * 3, *[_ADDRESS, _COUNT] * 2, *[_COUNT] * 3],
    "verify_chain": [*[_ADDRESS, _COUNT] * 2, _ADDRESS, _COUNT, _COUNT],
    "append_tokens": [
        *(_ADDRESS, _COUNT, *[_ADDRESS] * 4, *(_ADDRESS, _COUNT, _ADDRESS, _COUNT, _COUNT)),
    ],
    "lay_out_rows": [
        *(_ADDRESS, _COUNT, _COUNT, _ADDRESS, _ADDRESS, _COUNT),
        *(_ADDRESS, _ADDRESS, _ADDRESS, _COUNT, _COUNT, _ADDRESS, _COUNT),
    ],
}
_OF_TUNING: dict[str, list[type]] = {
    "set_tuning": [_ADDRESS],
    "release_pages": [_ADDRESS, _COUNT],
    "evict": [_ADDRESS, _COUNT],
}
_LARGE: dict[str, list[type]] = {
    "pack": [_ADDRESS, _ADDRESS],
    "pack_quantized": [*[_ADDRESS] * 4],
    "linear": [*[_ADDRESS] * 3, _COUNT, _ADDRESS, _COUNT],
    "map_heads": [_ADDRESS, _COUNT, _ADDRESS, _COUNT, _COUNT, _ADDRESS, _COUNT],
    "experts": [*[_ADDRESS] * 5, _COUNT, *[_ADDRESS] * 7],
    "decoder_layers": [_ADDRESS, _ADDRESS, _COUNT, *[_ADDRESS] * 4],
    "attend": [*[_ADDRESS] * 3, _COUNT, *[_ADDRESS] * 3, *[_COUNT] * 4, _ADDRESS],
    "gated_delta": [*[_ADDRESS] * 3, _COUNT, *[_ADDRESS] * 3],
    "keep_drafted": [*[_ADDRESS] * 4, _COUNT, _ADDRESS, _COUNT],
}
SIGNATURES = {**_SMALL, **_LARGE, **_OF_TUNING}
"""Argument types of every function in C."""


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
    verify_chain: Callable[..., None]
    append_tokens: Callable[..., None]
    lay_out_rows: Callable[..., None]
    pack: Callable[..., None]
    pack_quantized: Callable[..., None]
    linear: Callable[..., None]
    map_heads: Callable[..., None]
    experts: Callable[..., None]
    attend: Callable[..., None]
    gated_delta: Callable[..., None]
    keep_drafted: Callable[..., None]
    decoder_layers: Callable[..., None]
    set_tuning: Callable[..., None]
    release_pages: Callable[..., None]
    evict: Callable[..., None]

    def __init__(self, file: Path, dtype: torch.dtype) -> None:
        self.file = file
        self.dtype = dtype
        self.tuning = Tuning()
        name = str(file)
        small, large = ctypes.PyDLL(name), ctypes.CDLL(name)
        self.most_rows: int = large.most_rows()
        for loaded, functions in ((small, _SMALL), (large, _LARGE | _OF_TUNING)):
            for called, arguments in functions.items():
                function = getattr(loaded, called)
                function.argtypes, function.restype = arguments, None
                setattr(self, called, function)

    def use(self, tuning: Tuning) -> None:
        """Tune maps that begin from now on, and weights that are packed.

        Tiles have at most as many rows as this processor has registers for.
        """
        self.tuning = replace(tuning, rows=min(tuning.rows, self.most_rows))
        fields = self.tuning.in_c()
        self.set_tuning(ctypes.addressof(fields))


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
    """Return a name for what the bits of results depend on: the processor and compiled kernels."""
    found = _library(dtype)
    if isinstance(found, Library):
        return measurements_file(found.file).stem
    return processor_fingerprint()


def tuning_facts(dtype: torch.dtype) -> dict[str, int]:
    """Return the tuning of the kernels for a type, by field; nothing where they cannot run."""
    found = _library(dtype)
    return {} if isinstance(found, str) else asdict(found.tuning)


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
    library = compile_library(SOURCES, HEADERS, flags_of(dtype), lambda file: Library(file, dtype))
    library.use(tuning_of(library))
    return library


def flags_of(dtype: torch.dtype) -> tuple[str, ...]:
    """Return the compiler's options for the kernels of a type."""
    define = TYPES[dtype]
    return (*FLAGS, define) if define else FLAGS


def tuning_of(library: Library) -> Tuning:
    """Return the tuning that was measured before, or measure one and keep it.

    Raises:
        ValueError: the environment variable has a value that does not exist.
    """
    wanted = os.environ.get(TUNING_VARIABLE, "")
    if wanted not in ("", "default"):
        raise ValueError(f"{TUNING_VARIABLE}={wanted!r} is unknown: set default, or leave it out")
    if wanted:
        return Tuning()
    file = measurements_file(library.file)
    found = tuning.read(file)
    if found is None:
        began_s = time.monotonic()
        with one_thread():
            found = tuning.measure(TimedMaps(library))
        tuning.keep(found, file)
        log.info("%s kernels tuned in %.1f s: %s", library.dtype, time.monotonic() - began_s, found)
    return found
