"""`make serve` serves the example without Kubernetes, on the ports that its variables name."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def served() -> Iterator[subprocess.Popen[str]]:
    """The program on any free port, its management on the same one."""
    variables = {"PYTHONPATH": str(ROOT), "PORT": "0", "MANAGEMENT_PORT": "0"}
    process = subprocess.Popen(
        [sys.executable, "-m", "demo.serve"],
        env=os.environ | variables,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    process.terminate()
    process.communicate(timeout=60)


def test_its_variables_choose_the_ports(served: subprocess.Popen[str]) -> None:
    assert served.stderr is not None
    found = (re.search(r"listening on 127\.0\.0\.1 port (\d+)", line) for line in served.stderr)
    port = next(match[1] for match in found if match)
    # With a port of its own, the management's paths would be unknown here.
    assert httpx.get(f"http://127.0.0.1:{port}/live", timeout=30).status_code == 200
