"""`python bench/gpu/gpu_queue`: run what is due, or collect results (`--help`).

Needs Python alone besides wheels in bench/carry (`make gpu-carry`); the entries need what
`python bench/gpu` needs.
"""

import sys
import time
from pathlib import Path

BEGAN_S = time.monotonic()
ROOT = Path(__file__).resolve().parents[3]

if __name__ == "__main__":
    sys.path[0] = str(ROOT)
    from bench.gpu.gpu_queue.command import main

    sys.exit(main(sys.argv[1:], BEGAN_S))
