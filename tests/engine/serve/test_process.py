"""The whole process: real signals, real exit codes."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = """
import logging, sys
sys.modules["torch"] = None  # the server does without, and starts sooner
from pathlib import Path
from specdecode_api.boot import EngineBoot
from specdecode_engine.serve.engine.core import LoadedEngine
from specdecode_engine.serve.server import serve
from tests.engine.serve.echo_core import EchoCore

logging.basicConfig(level=logging.INFO, stream=sys.stdout)
folder = Path(sys.argv[1])
server = {"host": "127.0.0.1", "port": 0, "drain_seconds": 20}
boot = EngineBoot.model_validate({"model": {"path": str(folder)}, "server": server})
core = EchoCore(step_seconds=float(sys.argv[2]), tokens_per_step=1)
sys.exit(serve(boot, lambda progress: LoadedEngine(core, folder)))
"""


@pytest.fixture
def start(model_folder, eventually):
    processes: list[subprocess.Popen[str]] = []

    def run(step_seconds=0.05):
        command = [sys.executable, "-c", PROGRAM, str(model_folder), str(step_seconds)]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        processes.append(process)
        assert process.stdout is not None
        listening = re.search(r"port (\d+)", process.stdout.readline())
        assert listening is not None
        url = f"http://127.0.0.1:{listening[1]}"
        eventually(lambda: is_ready(url), 60)
        return process, url

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def is_ready(url):
    try:
        return httpx.get(url + "/health/ready").status_code == 200
    except httpx.TransportError:
        return False


def test_sigterm_finishes_the_running_stream_and_exits_with_0(start):
    process, url = start()
    body = {"prompt": "the fox", "max_tokens": 20, "stream": True}
    with httpx.stream("POST", url + "/v1/completions", json=body, timeout=20) as answer:
        lines = answer.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        rest = list(lines)
    assert rest[-2] == "data: [DONE]"
    assert process.wait(10) == 0


def test_a_step_that_never_ends_cannot_keep_the_process(start):
    process, url = start(step_seconds=600)
    body = {"prompt": "the fox", "stream": True}
    with httpx.stream("POST", url + "/v1/completions", json=body, timeout=30) as answer:
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        assert "stopped before" in answer.read().decode()
    assert process.wait(20) == 0
    assert "still busy" in process.stdout.read()
