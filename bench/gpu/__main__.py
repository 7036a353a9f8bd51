"""`python bench/gpu`: measure one GPU within nine minutes; without one, try the script out.

Needs torch, triton and transformers, and this checkout; what else the engine imports may lie as
wheels in bench/carry (`make gpu-carry`).
"""

import sys
import time
from pathlib import Path

BEGAN_S = time.monotonic()
ROOT = Path(__file__).resolve().parents[2]
SOURCES = (".", "crds/src", "kernels/src", "engine/src")

if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / folder) for folder in SOURCES]
    from bench.gpu.command import main

    sys.exit(main(sys.argv[1:], BEGAN_S))
