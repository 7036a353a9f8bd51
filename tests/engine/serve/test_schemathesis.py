"""Requests that schemathesis generates from /openapi.json, over real HTTP."""

import re
import subprocess
import sys
from pathlib import Path

from specdecode_engine.serve.openapi import OPERATIONS

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
SEED, EXAMPLES = 1, 12  # for each operation


def test_generated_requests_get_documented_responses(echo_server, tmp_path: Path) -> None:
    """`make clients` sends more of them, to an engine with a model."""
    done = subprocess.run(
        [
            *(Path(sys.executable).with_name("schemathesis"), "run"),
            *(f"{echo_server.url}/openapi.json", "--checks", ",".join(CHECKS)),
            *("--phases", "fuzzing", "--max-examples", str(EXAMPLES), "--seed", str(SEED)),
            *("--no-shrink", "--generation-database", "none", "--no-color"),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    generated = re.search(r"(\d+) generated, \1 passed", done.stdout)
    assert generated is not None, done.stdout[-1000:]
    assert int(generated[1]) >= len(OPERATIONS) * EXAMPLES * 0.8
