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
        results = Path(folder, "results.json")
        program = Path(sys.executable).with_name("guidellm")
        done = subprocess.run(
            [
                *(program, "run", "--backend", f"kind=openai_http,target={url}"),
                *("--tokenizer", f"kind=huggingface_auto,model={tokenizer}"),
                *("--profile", "kind=synchronous"),
                *("--constraint", f"kind=max_requests,count={REQUESTS}"),
                *("--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=16"),
                *("--output", f"kind=json,path={results}", "--disable-console"),
            ],
            capture_output=True,
            text=True,
            timeout=400,
            cwd=folder,
            env=os.environ | {"COLUMNS": "200"},
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-300:]
        # The metrics leave out requests at the ends of the measured time.
        state = json.loads(results.read_text())["benchmarks"][0]["scheduler_state"]
        assert state["successful_requests"] == REQUESTS, state
        assert state["errored_requests"] == 0, state


run((benchmark,))
