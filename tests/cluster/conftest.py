"""Makes the local node's package importable, which no distribution carries."""

import sys
from pathlib import Path

_CLUSTER = str(Path(__file__).resolve().parents[2] / "cluster")
if _CLUSTER not in sys.path:
    sys.path.insert(0, _CLUSTER)
