"""`python -m checks.request_trace [--verbose]`: files, functions and calls of one stream."""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "models"
NUM_STEPS = 3
TIMEOUT_S = 300
EAGLE3: dict[str, object] = {
    "algorithm": "EAGLE3",
    "draft_path": str(EXAMPLES / "eagle3"),
    "policy": "static",
    "num_steps": NUM_STEPS,
}
CONFIGURATIONS: dict[str, dict[str, object]] = {"plain": {}, "eagle3": EAGLE3}


class TraceFailed(Exception):
    """The traced server ended without a trace; the message holds its output."""


def main(arguments: list[str] | None = None) -> int:
    """Trace both configurations; the last line of output is JSON."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="request_trace")
    parser.add_argument("--verbose", action="store_true", help="list files, functions and records")
    options = parser.parse_args(arguments)
    traces = {name: trace(speculation) for name, speculation in CONFIGURATIONS.items()}
    if options.verbose:
        for name, one in traces.items():
            print_lists(name, one)
    print(json.dumps(summary(traces)))
    return 0


def trace(speculation: dict[str, object]) -> dict[str, Any]:
    """Trace the second of two equal requests to a server of its own.

    Raises:
        TraceFailed: with the server's output.
    """
    with tempfile.TemporaryDirectory() as folder:
        boot = Path(folder) / "boot.json"
        boot.write_text(json.dumps(boot_document(speculation)))
        command = [
            sys.executable,
            "-m",
            "checks.request_trace.traced_server",
            str(boot),
            str(free_port()),
        ]
        paths = os.pathsep.join(path for path in sys.path if path)
        environment = os.environ | {"PYTHONPATH": paths}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    lines = done.stdout.splitlines()
    found: dict[str, Any] = json.loads(lines[-1]) if lines and lines[-1][:1] == "{" else {}
    if done.returncode or found.get("error") or not found:
        reason = found.get("error") or f"exit code {done.returncode}"
        raise TraceFailed(f"no trace: {reason}\n{done.stderr[-4000:]}")
    return found


def boot_document(speculation: dict[str, object]) -> dict[str, object]:
    """The boot file of a server on the CPU in float32."""
    return {
        "model": {
            "path": str(EXAMPLES / "target"),
            "served_name": "target",
            "dtype": "float32",
        },
        "speculation": speculation,
        "server": {"management_port": 0},
        "device": "cpu",
        "threads": 1,
    }


def summary(traces: dict[str, dict[str, Any]]) -> dict[str, object]:
    """The figures by configuration; record types are those of the request without a draft."""
    figures: dict[str, object] = {
        name: {
            "files": len(one["files"]),
            "functions": len(one["functions"]),
            "calls_per_step": one["calls_per_step"],
        }
        for name, one in traces.items()
    }
    return figures | {"record_types": len(traces["plain"]["record_types"])}


def print_lists(name: str, found: dict[str, Any]) -> None:
    """Print every name that was counted."""
    for kind in ("files", "functions", "record_types"):
        print(f"# {name}: {kind.replace('_', ' ')}")
        print("\n".join(found[kind]))


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())
