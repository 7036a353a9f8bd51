"""Selects, before any test imports Triton, whether its kernels are compiled or interpreted.

Triton reads the variable when kernels are defined, its own library's at its import; Transformers
imports it in other folders' tests.
"""

import os
from pathlib import Path

if not Path("/proc/driver/nvidia/version").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
