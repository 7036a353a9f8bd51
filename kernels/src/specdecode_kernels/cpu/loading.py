"""Compiles the C kernels for one type, and tunes them for this processor once."""

import logging
import os
import time
from dataclasses import asdict
from functools import cache
from pathlib import Path

import torch

from specdecode_kernels.cpu import tuning
from specdecode_kernels.cpu.amx import Products, choose_products
from specdecode_kernels.cpu.compile import (
    FLAGS,
    CannotCompile,
    compile_library,
    measurements_file,
    processor_fingerprint,
)
from specdecode_kernels.cpu.library import Library
from specdecode_kernels.cpu.timed_maps import TimedMaps, one_thread
from specdecode_kernels.cpu.tuning import Tuning
from specdecode_kernels.packed_weights import SumOrder

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
        "blocks32",
        "amx",
        "tuning",
        "packing",
        "low_rank",
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
    for name in (
        "vectors",
        "rounding",
        "formats",
        "tile",
        "linear",
        "low_rank",
        "blocks32",
        "tuning",
        "attend",
        "gated_delta",
    )
)


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


def load_for(dtype: torch.dtype, sums: SumOrder) -> Library:
    """Load the library for a type; where sums are blocks32, decide whether AMX computes them.

    Raises:
        CannotCompile: with `unsupported_reason`.
        ValueError: an environment variable has a value that does not exist.
    """
    library = load_library(dtype)
    if sums == "blocks32":
        _products(library)
    return library


@cache
def _products(library: Library) -> Products:
    return choose_products(library)


def products_facts(dtype: torch.dtype) -> dict[str, str]:
    """Return which instructions compute sums in the order blocks32, and the reason."""
    chosen = _products(load_library(dtype))
    return {"sum_products": chosen.name, "sum_products_reason": chosen.reason}


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
