"""The whole server in a process of its own, on an echo core."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx

ROOT = Path(__file__).parents[3]
PROGRAM = """
import json, logging, sys, time
from functools import partial
sys.modules["torch"] = None  # the server does without, and starts sooner
from pathlib import Path
from specdecode_api.boot import EngineBoot
from specdecode_engine.process import leave, termination_message_for
from specdecode_engine.serve.engine.engine_process import in_process
from specdecode_engine.serve.server import serve
from tests.engine.serve import echo_core

logging.basicConfig(level=logging.INFO, stream=sys.stdout)
folder = Path(sys.argv[1])
server = {"host": "127.0.0.1", "port": 0, "management_port": 0, "drain_seconds": 20}
server |= json.loads(sys.argv[3])
boot = EngineBoot.model_validate({"model": {"path": str(folder)}, "server": server})
load = getattr(echo_core, sys.argv[5])
load = partial(load, step_seconds=float(sys.argv[2]), tokens_per_step=1, **json.loads(sys.argv[4]))
connect = in_process(boot, load, time.monotonic) if boot.has_engine_process else None
sys.exit(serve(boot, partial(load, boot), connect=connect,
               on_failure=lambda error: leave(termination_message_for(error))))
"""


class EchoProcess:
    """A server process; its standard output is its log."""

    def __init__(
        self,
        folder: Path,
        environment: dict[str, str],
        step_seconds: float,
        core: Mapping[str, object] = MappingProxyType({}),
        load: str = "load_echo",
        **server: Any,
    ) -> None:
        words = [str(folder), str(step_seconds), json.dumps(server), json.dumps(dict(core)), load]
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *words],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        )
        self.management_port = server.get("management_port")
        self.port = 0

    def read_port(self) -> None:
        """Read the port of the API from the log."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        listening = re.search(r"listening on \S+ port (\d+)", line)
        assert listening is not None, line
        self.port = int(listening[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def management_url(self) -> str:
        return f"http://127.0.0.1:{self.management_port or self.port}"

    def is_ready(self) -> bool:
        try:
            return httpx.get(self.management_url + "/ready", timeout=10).status_code == 200
        except httpx.TransportError:
            return False

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
