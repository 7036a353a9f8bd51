"""Compiles the C kernels ahead of time into this package, where engines look for them first.

    python -m specdecode_kernels.precompile_cpu

Images contain them, as compiling takes most of a pod's start on a CPU. Processors below
x86-64-v3 and other than x86-64 compile at their first start.
"""

import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product

from specdecode_kernels.cpu.compile import LEVELS, precompile
from specdecode_kernels.cpu.loading import HEADERS, SOURCES, TYPES, flags_of


def main() -> int:
    """Compile one library per type and level of x86-64."""
    if platform.machine() != "x86_64":
        print("nothing to compile: there are levels of x86-64 alone")
        return 0
    with ThreadPoolExecutor() as pool:  # of compilers, which are processes
        runs = [
            pool.submit(precompile, SOURCES, HEADERS, flags_of(dtype), level)
            for dtype, level in product(TYPES, LEVELS)
        ]
        for run in runs:
            file = run.result()
            print(f"{file.name}: {file.stat().st_size / 2**10:.0f} KiB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
