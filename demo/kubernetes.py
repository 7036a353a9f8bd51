"""kubectl and helm, pointed at the demo's cluster."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from demo.console import DemoFailed

ROOT = Path(__file__).resolve().parent.parent
LINES_SHOWN = 15


class Cluster:
    """The local node, or the cluster that CONTEXT names."""

    def __init__(self, context: str | None) -> None:
        self.context = context
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(ROOT / "cluster"), str(ROOT))),
        }

    @property
    def is_local(self) -> bool:
        """Whether the demo started the node itself."""
        return self.context is None

    def localnode(self, *arguments: str) -> None:
        """Run a command of the local node in the foreground."""
        command = (sys.executable, "-m", "localnode", *arguments)
        if subprocess.run(command, cwd=ROOT, env=self.environment, check=False).returncode:
            raise DemoFailed(f"localnode {' '.join(arguments)} failed; see the lines above")

    def use_programs(self) -> None:
        """Take kubectl, helm and the kubeconfig from the local node."""
        if not self.is_local:
            missing = [program for program in ("kubectl", "helm") if not shutil.which(program)]
            if missing:
                raise DemoFailed(
                    f"{' and '.join(missing)} not found; install them, or unset CONTEXT"
                )
            return
        from localnode.paths import Paths
        from localnode.tools import programs

        paths = Paths.from_environment()
        self.environment["PATH"] = f"{programs(paths)}:{self.environment['PATH']}"
        self.environment["KUBECONFIG"] = str(paths.kubeconfig)

    def kubectl(self, *arguments: str, given: str | None = None) -> str:
        """Run kubectl and return what it printed; a failure names the command and its reason."""
        return self._run((*self._kubectl(), *arguments), given)

    def helm(self, *arguments: str) -> str:
        """Run helm and return what it printed."""
        context = () if self.context is None else ("--kube-context", self.context)
        return self._run(("helm", *context, *arguments), None)

    def show(self, *arguments: str) -> None:
        """Run kubectl with its output on the screen."""
        command = (*self._kubectl(), *arguments)
        if subprocess.run(command, env=self.environment, check=False).returncode:
            raise DemoFailed(f"{' '.join(command)} failed; see the lines above")

    def get(self, *arguments: str) -> dict[str, Any]:
        """Read one object."""
        document: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return document

    @contextmanager
    def port_forward(self, target: str, port: int) -> Iterator[str]:
        """Forward a free local port to `target`; yields its URL once it listens."""
        command = (*self._kubectl(), "port-forward", target, f":{port}")
        with subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                if "->" not in line:
                    raise DemoFailed(f"{' '.join(command)} did not start: {line.strip()}")
                address = line.split("from ")[1].split(" ->")[0]
                yield f"http://{address}"
            finally:
                process.terminate()

    def _kubectl(self) -> tuple[str, ...]:
        return ("kubectl",) if self.context is None else ("kubectl", "--context", self.context)

    def _run(self, command: tuple[str, ...], given: str | None) -> str:
        done = subprocess.run(
            command,
            env=self.environment,
            cwd=ROOT,
            input=given,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            reason = "\n".join((done.stderr or done.stdout).splitlines()[-LINES_SHOWN:])
            raise DemoFailed(f"{' '.join(command)} failed:\n{reason}")
        return done.stdout


def wait_until(
    look: Callable[[], str | None], report: Callable[[str], None], seconds: float
) -> None:
    """Poll until `look` returns None; print what it returns when that changes.

    Raises:
        DemoFailed: the time is over; the message holds what was seen last.
    """
    deadline = time.monotonic() + seconds
    last = ""
    while (state := look()) is not None:
        if state != last:
            report(state)
            last = state
        if time.monotonic() > deadline:
            raise DemoFailed(f"not ready after {seconds:.0f} s: {state}")
        time.sleep(0.5)
