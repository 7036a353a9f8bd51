"""`python -m bench.gpu.peers.pack`: download, cut and pack vLLM and SGLang."""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from bench.gpu.carry import ROOT, size_of, travelling
from bench.gpu.peers.pack.archive import PART_MIB, check_travel, write_parts
from bench.gpu.peers.pack.errors import PackError
from bench.gpu.peers.pack.recipes import RECIPES, Recipe
from bench.gpu.peers.pack.stage import cut, stage
from bench.gpu.peers.parts import (
    MANIFEST,
    PARTS,
    PINNED,
    PackedPeer,
    PartsError,
    read_manifest,
    write_manifest,
)

NEEDED_BYTES = 6 << 30
"""Both peers, installed and cached."""


def main() -> int:
    """Pack; 1 if a wheel or a size is refused."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="bench.gpu.peers.pack")
    names = [recipe.name for recipe in RECIPES]
    parser.add_argument("--folder", type=Path, default=PARTS, help="gets the parts")
    parser.add_argument("--only", choices=names, help="pack one peer, keep the other's parts")
    parser.add_argument(
        "--part-mib", type=int, default=PART_MIB, help=f"size of a part, 1 to {PART_MIB}"
    )
    options = parser.parse_args()
    if not 1 <= options.part_mib <= PART_MIB:
        parser.error(f"--part-mib is {options.part_mib}; it must be 1 to {PART_MIB}")
    chosen = [recipe for recipe in RECIPES if options.only in (None, recipe.name)]
    options.folder.mkdir(parents=True, exist_ok=True)
    kept = (options.folder / MANIFEST).exists() and options.only
    try:
        peers = read_manifest(options.folder) if kept else {}
        for recipe in chosen:
            peers[recipe.name] = _pack(recipe, options.folder, options.part_mib << 20)
            write_manifest(options.folder, peers)
        check_travel(peers, sum(size_of(ROOT / name) for name in travelling()))
    except (PackError, PartsError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _pack(recipe: Recipe, into: Path, part_bytes: int) -> PackedPeer:
    with tempfile.TemporaryDirectory(prefix="peers-pack-") as work:
        if (free := shutil.disk_usage(work).free) < NEEDED_BYTES:
            raise PackError(
                f"{work} has {free / 2**30:.1f} GiB free, {NEEDED_BYTES >> 30} are needed; "
                "set TMPDIR"
            )
        folder = Path(work, recipe.name)
        stage(recipe, folder)
        print(f"{recipe.name} {PINNED[recipe.name]}: {size_of(folder) / 2**20:.0f} MiB", flush=True)
        for name, sizes in cut(recipe, folder).items():
            kept, zeroed = sizes.kept / 2**20, sizes.zeroed / 2**20
            print(f"  {name}: {kept:.1f} MiB kept, {zeroed:.1f} MiB cut", flush=True)
        packed = write_parts(folder, recipe.name, PINNED[recipe.name], into, part_bytes)
    for part in packed.parts:
        print(f"  {part.name}: {part.size / 2**20:.1f} MiB", flush=True)
    return packed


if __name__ == "__main__":
    sys.exit(main())
