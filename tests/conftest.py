"""Selects, before any test imports Triton, whether its kernels are compiled or interpreted.

Triton reads the variable when kernels are defined, its own library's at its import; Transformers
imports it in other folders' tests.
"""

import os
import shutil
import signal
from pathlib import Path

import pytest

# Programs that were started in the background, as tests are by some shells, inherit that interrupts
# are ignored, and so would the programs that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

if not Path("/proc/driver/nvidia/version").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def debian_program():
    """Path of a program of a Debian package; where it is missing, the package is installed."""
    from localnode.paths import Paths
    from localnode.tools import install_test_packages, missing_test_packages

    def path(program):
        missing = missing_test_packages()
        if missing and (os.geteuid() != 0 or shutil.which("apt-get") is None):
            stop = pytest.fail if os.environ.get("CI") else pytest.skip
            stop(f"install these Debian packages: {missing}")
        install_test_packages(Paths.from_environment())
        return program

    return path
