"""guidellm with its defaults, its check of the backend included."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import run

url, tokenizer = sys.argv[1:3]
REQUESTS = 6


def benchmark() -> None:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(sys.executable).with_name("guidellm")
        done = subprocess.run(
            [
                *(program, "benchmark", "--target", url, "--processor", tokenizer),
                *("--profile", "synchronous", "--max-requests", str(REQUESTS)),
                *("--data", "prompt_tokens=32,output_tokens=16"),
                *("--output-path", f"{folder}/results.json"),
            ],
            capture_output=True,
            text=True,
            timeout=400,
            env=os.environ | {"COLUMNS": "200"},
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-300:]
        report = json.loads(Path(folder, "results.json").read_text())
        totals = report["benchmarks"][0]["metrics"]["request_totals"]
        assert totals["successful"] == REQUESTS, totals


run((benchmark,))
