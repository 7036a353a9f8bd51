"""An engine process with the example models, with and without a draft."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from checks.fuzz.fields import MODEL
from checks.harness.servers import Recipe, Server, serving
from checks.request_trace.__main__ import EXAMPLES, free_port

MAX_RUNNING = 32
MAX_QUEUED = 64
STORE_BYTES = 2 * 2**20
EAGLE3: dict[str, object] = {
    "algorithm": "EAGLE3",
    "draft_path": str(EXAMPLES / "eagle3"),
    "policy": "static",
    "num_steps": 3,
}


@dataclass(frozen=True, slots=True)
class ServedEngine:
    """A running engine: the ports of its API and of its management."""

    server: Server
    port: int
    management_port: int

    def has_ended(self) -> bool:
        """Whether the process has ended, its exit status still to be read."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.server.pid, options) is not None


def boot_document(
    management_port: int, speculation: dict[str, object], target: Path = EXAMPLES / "target"
) -> dict[str, object]:
    """The boot file of an engine on one thread of a CPU, in float32."""
    return {
        "model": {"path": str(target), "served_name": MODEL, "dtype": "float32"},
        "speculation": speculation,
        "scheduling": {
            "max_running_requests": MAX_RUNNING,
            "max_queued_requests": MAX_QUEUED,
            "chunked_prefill_tokens": 256,
        },
        "server": {"management_port": management_port, "response_store_bytes": STORE_BYTES},
        "device": "cpu",
        "threads": 1,
    }


@contextmanager
def serve_example(
    folder: Path,
    speculation: dict[str, object] | None = None,
    target: Path = EXAMPLES / "target",
) -> Iterator[ServedEngine]:
    """Serve the example model, with EAGLE-3 unless another speculation is given.

    Raises:
        ServerFailed: it did not come up.
    """
    management_port = free_port()
    boot = folder / "boot.json"
    chosen = EAGLE3 if speculation is None else speculation
    boot.write_text(json.dumps(boot_document(management_port, chosen, target)))

    def command(port: int) -> Sequence[str]:
        where = ("--host", "127.0.0.1", "--port", str(port))
        return (sys.executable, "-m", "specdecode_engine", "--boot", str(boot), *where)

    with serving(Recipe("engine", MODEL, command)) as server:
        yield ServedEngine(server, int(server.url.rpartition(":")[2]), management_port)
