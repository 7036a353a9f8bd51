"""schemathesis against /openapi.json: no server error, and responses as the document has them."""

import subprocess
import sys
import tempfile
from pathlib import Path

from checks import run

url = sys.argv[1]
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
EXAMPLES = "40"
SEED = "1"


def generated_requests() -> None:
    program = Path(sys.executable).with_name("schemathesis")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                *(program, "run", f"{url}/openapi.json", "--checks", ",".join(CHECKS)),
                *("--phases", "examples,coverage,fuzzing", "--max-examples", EXAMPLES),
                *("--seed", SEED, "--request-timeout", "60", "--no-shrink", "--no-color"),
            ],
            capture_output=True,
            text=True,
            cwd=folder,
            timeout=800,
        )
    assert done.returncode == 0, done.stdout[-1500:]


run((generated_requests,))
