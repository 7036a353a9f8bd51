"""`python -m checks.vllm_cpu.record`: record vLLM's metrics and arguments for tests without it.

Writes three files into `tests/operator/runtimes/recorded/`, each with version and date: the
exposition of a server with the example pair after a few greedy requests, that of two API servers as
with data parallelism, and the arguments of `vllm serve`.
"""

import argparse
import datetime
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from checks.vllm_cpu.environment import VERSION, ensure_vllm, serve_command, variables

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "operator" / "runtimes" / "recorded"
MODELS = ROOT / "examples" / "models"
METRICS, ARGUMENTS = f"vllm-{VERSION}-metrics.txt", f"vllm-{VERSION}-arguments.json"
API_SERVERS_METRICS = f"vllm-{VERSION}-api-servers-metrics.txt"
NAME = "target"
START_TIMEOUT_S = 600.0
STREAMS = 12
_OF_THE_PROCESS = ("process_", "python_")
_READ_ARGUMENTS = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
found = [
    {
        "flags": [*action.option_strings],
        "kind": type(action).__name__.strip("_"),
        **({"values": str(action.nargs)} if action.nargs is not None else {}),
        **({"choices": [*map(str, action.choices)]} if action.choices else {}),
    }
    for action in parser._actions
    if action.option_strings
]
json.dump(sorted(found, key=lambda one: one["flags"]), sys.stdout)
"""


def record_arguments(python: Path) -> list[dict[str, Any]]:
    """Return the flags of `vllm serve` with kind, number of values and choices, as its parser has.

    Raises:
        subprocess.CalledProcessError: vLLM does not start.
    """
    words = [str(python), "-c", _READ_ARGUMENTS]
    done = subprocess.run(words, env=variables(), capture_output=True, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def record_metrics(python: Path, *more: str) -> str:
    """Return the exposition of a server with an EAGLE-3 draft after the requests of `_request`.

    Args:
        more: arguments of the server.
    """
    draft = {"method": "eagle3", "model": str(MODELS / "eagle3"), "num_speculative_tokens": 3}
    arguments = (
        *("--served-model-name", NAME, "--max-model-len", "512", "--max-num-seqs", "4"),
        *("--dtype", "bfloat16", "--speculative-config", json.dumps(draft)),
        *more,
    )
    with serving(python, MODELS / "target", arguments) as url, httpx.Client(base_url=url) as client:
        _request(client)
        return _without_process(client.get("/metrics").raise_for_status().text)


@contextmanager
def serving(python: Path, target: Path, arguments: Sequence[str]) -> Iterator[str]:
    """Serve a model within the body; yields the server's address.

    Raises:
        TimeoutError: it did not become ready; the text has the end of its log.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryFile("w+") as log:
        words = serve_command(python, target, port, *arguments)
        process = subprocess.Popen(
            words, env=variables(), stdout=log, stderr=log, start_new_session=True
        )
        try:
            url = f"http://127.0.0.1:{port}"
            if not _is_ready(url, process):
                raise TimeoutError(os.pread(log.fileno(), 1 << 20, 0).decode()[-2000:])
            yield url
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _is_ready(url: str, process: subprocess.Popen[bytes]) -> bool:
    ends_s = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < ends_s:
        try:
            if httpx.get(f"{url}/health").is_success:
                return True
        except httpx.TransportError:
            pass  # it does not listen yet
        time.sleep(0.2)
    return False


def _request(client: httpx.Client) -> None:
    """Send requests with temperature 0: one, one of a token, one that is given up, some at once."""
    _complete(client, 40)
    _complete(client, 1)
    with client.stream("POST", "/v1/completions", json=_body(200) | {"stream": True}) as answer:
        lines = answer.iter_lines()
        for _ in range(3):
            next(lines)
    wrong_model, wrong_tokens = _body(4) | {"model": "other"}, _body(4) | {"max_tokens": -1}
    for body in (wrong_model, wrong_tokens):
        assert client.post("/v1/completions", json=body).is_client_error
    with ThreadPoolExecutor(STREAMS) as pool:
        list(pool.map(lambda _: _complete(client, 60), range(STREAMS)))
    ends_s = time.monotonic() + 60
    while "num_requests_running" in (text := client.get("/metrics").text):
        running = [one for one in text.splitlines() if one.startswith("vllm:num_requests_running")]
        if all(float(one.split()[-1]) == 0 for one in running) or time.monotonic() > ends_s:
            return
        time.sleep(0.1)


def _complete(client: httpx.Client, tokens: int) -> None:
    client.post("/v1/completions", json=_body(tokens), timeout=120).raise_for_status()


def _body(tokens: int) -> dict[str, Any]:
    text = "Which day comes before Saturday?"
    return {
        "model": NAME,
        "prompt": text,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }


def _without_process(text: str) -> str:
    """Leave out what every Python process exposes, and comments on it."""
    kept = (one for one in text.splitlines() if _family(one) not in (*_OF_THE_PROCESS,))
    return "\n".join(kept) + "\n"


def _family(line: str) -> str:
    words = line.split()
    name = words[2] if line.startswith("#") else words[0]
    return next((one for one in _OF_THE_PROCESS if name.startswith(one)), name)


def main(arguments: Sequence[str]) -> int:
    """Record the files."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the files")
    out: Path = parser.parse_args(arguments).out
    python, date = ensure_vllm(), datetime.date.today().isoformat()
    out.mkdir(parents=True, exist_ok=True)
    about = {"runtime": "vllm", "version": VERSION, "package": f"vllm-cpu {VERSION}", "date": date}
    document = about | {"arguments": record_arguments(python)}
    (out / ARGUMENTS).write_text(json.dumps(document, indent=1) + "\n")
    head = (
        f"# vLLM {VERSION} (vllm-cpu {VERSION}, V1 model runner, CPU, bfloat16), {date}.\n"
        "# The example target with its EAGLE-3 head, num_speculative_tokens 3, max_num_seqs 4.\n"
        "# After greedy requests: 1 of 40 tokens, 1 of 1 token, 1 stream of 200 tokens that its\n"
        f"# client closed after the first events, 2 refused ones, {STREAMS} of 60 tokens at once.\n"
    )
    (out / METRICS).write_text(head + record_metrics(python))
    head += "# Two API servers, as with data parallelism: a registry of several processes.\n"
    several = record_metrics(python, "--api-server-count", "2")
    (out / API_SERVERS_METRICS).write_text(head + several)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
