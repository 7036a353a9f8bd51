"""Load by aiperf: so many requests at a time, all of one length, streamed."""

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from checks.harness.servers import Server

TIMEOUT_S = 900


class LoadFailed(Exception):
    """aiperf ended with an error, or requests did; see the message."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of every prompt and every answer."""

    prompt: int
    answer: int


@dataclass(frozen=True, slots=True)
class Point:
    """What came of one load."""

    concurrency: int
    requests: int
    tokens_per_s: float
    latency_p50_ms: float
    latency_p99_ms: float
    first_token_p50_ms: float
    between_tokens_p50_ms: float
    server_tokens_per_cpu_s: float


def run_load(
    aiperf: Path, server: Server, tokenizer: Path, lengths: Lengths, concurrency: int, requests: int
) -> Point:
    """Send `requests` of them, `concurrency` at a time.

    Args:
        aiperf: the program.
        tokenizer: folder of the model's tokenizer, for prompts of the right length.

    Raises:
        LoadFailed: aiperf ended with an error, or not all requests were answered.
    """
    before_s = server.cpu_s()
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(str(aiperf), "profile", "--model", server.model, "--url", server.url),
            *("--endpoint-type", "completions", "--streaming", "--tokenizer", str(tokenizer)),
            *("--isl", str(lengths.prompt), "--isl-stddev", "0"),
            *("--osl", str(lengths.answer), "--osl-stddev", "0"),
            *("--concurrency", str(concurrency), "--request-count", str(requests)),
            *("--random-seed", "1"),
            # Only servers with metrics would pay for their scrapes.
            *("--no-server-metrics", "--no-gpu-telemetry"),
            *("--ui", "none", "--artifact-dir", folder),
        ]
        # Offline, aiperf looks for folders of tokenizers among downloads only.
        environment = {k: v for k, v in os.environ.items() if k not in _NOT_FOR_AIPERF}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment
            )
        except subprocess.TimeoutExpired:
            raise LoadFailed(f"aiperf took over {TIMEOUT_S} s; try fewer requests") from None
        written = Path(folder) / "profile_export_aiperf.json"
        if done.returncode or not written.exists():
            lines = (done.stdout + done.stderr).strip().splitlines()
            raise LoadFailed(f"aiperf on {server.name}: {lines[-1] if lines else 'no message'}")
        document = json.loads(written.read_text())
    return read_point(document, lengths, concurrency, requests, server.cpu_s() - before_s)


_NOT_FOR_AIPERF = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "PYTHONPATH")


def read_point(
    document: dict[str, dict[str, float]],
    lengths: Lengths,
    concurrency: int,
    requests: int,
    cpu_s: float,
) -> Point:
    """Read aiperf's results; answers have their full length, as the models never end one.

    Raises:
        LoadFailed: requests are missing.
    """
    count = int(document.get("request_count", {}).get("avg", 0))
    if count != requests:
        raise LoadFailed(f"{count} of {requests} requests were answered")
    latency, first = document["request_latency"], document["time_to_first_token"]
    return Point(
        concurrency,
        requests,
        tokens_per_s=round(document["request_throughput"]["avg"] * lengths.answer, 1),
        latency_p50_ms=round(latency["p50"], 1),
        latency_p99_ms=round(latency["p99"], 1),
        first_token_p50_ms=round(first["p50"], 1),
        between_tokens_p50_ms=round(document["inter_token_latency"]["p50"], 2),
        server_tokens_per_cpu_s=round(requests * lengths.answer / cpu_s, 1),
    )
