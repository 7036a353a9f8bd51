"""Compares many drawn maps in the order blocks32 with the definition; `python -m` prints a summary.

With `--tiles` on the processor's AMX, next to multiply-adds; else AMX is computed in software.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import torch
from tqdm import tqdm

from specdecode_kernels.cpu.amx import REFUSALS
from specdecode_kernels.cpu.library import Library
from specdecode_kernels.cpu.loading import load_library
from tests.kernels.blocks32 import emulate_linear
from tests.kernels.drawn_maps import draw_map
from tests.kernels.maps_library import agree, compile_maps, map_in_blocks32

REFUSED = 2


def main(arguments: list[str] | None = None) -> int:
    """Compare; 1 if a map differs, 2 if this machine has no AMX to compare."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="compare_tiles")
    parser.add_argument("--maps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0, help="number of the first map")
    parser.add_argument("--tiles", action="store_true", help="on the processor's AMX")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="tiles-") as folder:
        by_tiles = compile_maps(Path(folder), in_software=not options.tiles)
        refused = by_tiles.use_amx(is_wanted=True)
        if refused:
            reason = REFUSALS.get(refused, f"Linux refuses its registers with errno {refused}")
            print(f"no map was compared: {reason}", file=sys.stderr)
            return REFUSED
        libraries = {"multiply-adds": load_library(torch.bfloat16), "tiles": by_tiles}
        differ = _compare(libraries, range(options.seed, options.seed + options.maps))
    print(f"{options.maps} maps from {options.seed} on, {differ} differ")
    return 1 if differ else 0


def _compare(libraries: dict[str, Library], seeds: range) -> int:
    """Return how many maps differ, each of which is printed."""
    differ = 0
    for seed in tqdm(seeds, desc="maps", file=sys.stderr, mininterval=10):
        drawn = draw_map(seed)
        wanted = emulate_linear(drawn.x, drawn.weight, drawn.bias)
        found = [
            name
            for name, library in libraries.items()
            if not agree(map_in_blocks32(library, drawn), wanted)
        ]
        if found:
            differ += 1
            print(f"{', '.join(found)}: {drawn.name}")
    return differ


if __name__ == "__main__":
    sys.exit(main())
