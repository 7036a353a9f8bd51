"""schemathesis against /openapi.json: no server error, and responses as the document has them."""

import subprocess
import sys
from pathlib import Path

from checks import run

url = sys.argv[1]
CHECKS = "not_a_server_error,content_type_conformance,response_schema_conformance"
EXAMPLES = "40"


def generated_requests() -> None:
    program = Path(sys.executable).with_name("schemathesis")
    done = subprocess.run(
        [
            *(program, "run", f"{url}/openapi.json", "--checks", CHECKS),
            *("--max-examples", EXAMPLES, "--phases", "examples,coverage,fuzzing"),
            *("--request-timeout", "60", "--no-color"),
        ],
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout[-1500:]


run((generated_requests,))
