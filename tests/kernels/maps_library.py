"""Libraries with linear maps in C alone, of bfloat16: with errors, or with AMX in software."""

import ctypes
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from specdecode_kernels.cpu.compile import compile_library
from specdecode_kernels.cpu.layers import linear
from specdecode_kernels.cpu.library import SIGNATURES, Library
from specdecode_kernels.cpu.loading import HEADERS, SOURCES, flags_of
from specdecode_kernels.cpu.packing import pack_weight
from specdecode_kernels.cpu.tuning import Tuning
from tests.kernels.blocks32 import emulate_linear
from tests.kernels.drawn_maps import DrawnMap

SOFTWARE_TILES = Path(__file__).with_name("software_tiles.h")
_NAMES = ("linear", "blocks32", "amx", "packing", "tuning")
_WITHOUT_TILES = """/* Sums in the order inputs are left out: tile.c takes long to compile. */
#include <stdlib.h>
#include "tile.h"
tile *tile_of(struct panel panel, long rows) { (void)panel, (void)rows; abort(); }
void widen_weights(struct panel panel, float *to) { (void)panel, (void)to; abort(); }
"""


class MapsLibrary(Library):
    """What `pack_weight` and `linear` call; the other functions do not exist."""

    def __init__(self, file: Path, dtype: torch.dtype) -> None:
        self.file, self.dtype = file, dtype
        loaded = ctypes.CDLL(str(file))
        self.most_rows = loaded.most_rows()
        self._use_amx = loaded.use_amx
        for name in ("pack", "pack_quantized", "linear", "set_tuning"):
            function = getattr(loaded, name)
            function.argtypes, function.restype = SIGNATURES[name], None
            setattr(self, name, function)
        self.use(Tuning())


def compile_maps(
    folder: Path, errors: Mapping[str, str] | None = None, *, in_software: bool = False
) -> MapsLibrary:
    """Compile copies of the sources in a folder.

    Args:
        errors: text that is in one source, once, and what replaces it.
        in_software: AMX is computed by `SOFTWARE_TILES`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = dict(errors or {})
    sources = []
    for file in SOURCES + HEADERS:
        if file.suffix == ".c" and file.stem not in _NAMES:
            continue
        text = file.read_text()
        for error in [one for one in missing if one in text]:
            assert text.count(error) == 1, error
            text = text.replace(error, missing.pop(error))
        (folder / file.name).write_text(text)
        if file.suffix == ".c":
            sources.append(folder / file.name)
    assert not missing
    (folder / "without_tiles.c").write_text(_WITHOUT_TILES)
    headers = tuple(folder / file.name for file in HEADERS)
    flags = flags_of(torch.bfloat16)
    if errors is not None:
        flags = (*flags, "-O2")  # faster, and fused as with -O3; with -O1 nothing is
    if in_software:
        flags = (*flags, f'-DSOFTWARE_TILES="{SOFTWARE_TILES}"')
        headers = (*headers, SOFTWARE_TILES)
    return compile_library(
        (*sources, folder / "without_tiles.c"),
        headers,
        flags,
        lambda file: MapsLibrary(file, torch.bfloat16),
    )


def map_in_blocks32(library: Library, drawn: DrawnMap, rows: slice = slice(None)) -> Tensor:
    """Map some rows of a drawn map."""
    packed = pack_weight(library, drawn.weight, sums="blocks32")
    return partial(linear, library)(drawn.x[rows], packed, drawn.bias)


def agree(got: Tensor, wanted: Tensor) -> bool:
    """Whether all bits agree; not-a-numbers agree with one another."""
    got, wanted = got.contiguous(), wanted.contiguous()
    same = got.view(torch.int16) == wanted.view(torch.int16)
    return bool((same | (got.isnan() & wanted.isnan())).all())


def is_as_defined(library: Library, drawn: DrawnMap) -> bool:
    """Whether a library gives the bits of the definition."""
    wanted = emulate_linear(drawn.x, drawn.weight, drawn.bias)
    return agree(map_in_blocks32(library, drawn), wanted)
