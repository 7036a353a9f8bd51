"""`python bench/gpu/peers`: compare engines on this machine's GPU, or at tiny sizes without one.

Needs what `python bench/gpu` needs; vLLM and SGLang are read from the parts that
`make bench-peers-pack` writes.
"""

import sys
import time
from pathlib import Path

BEGAN_S = time.monotonic()
ROOT = Path(__file__).resolve().parents[3]
SOURCES = (".", "crds/src", "kernels/src", "server/src", "engine/src")

if __name__ == "__main__":
    sys.path[:1] = [str(ROOT / folder) for folder in SOURCES]
    from bench.gpu.peers.command import main

    sys.exit(main(sys.argv[1:], BEGAN_S))
