"""One operator process with the permissions that the chart grants, and its metrics."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from specdecode_operator.cluster.metrics import PREFIX

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
START_TIMEOUT_S = 60.0


@dataclass(slots=True)
class OperatorProcess:
    """Started and killed by the bench."""

    kubeconfig: Path
    log: Path
    resync_s: float
    health_port: int
    metrics_port: int
    callbacks: Path | None = None
    """Where to write long callbacks of its event loop, if they are timed."""
    last_peak_mib: float = 0.0
    """Peak memory when it was stopped."""
    process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def describe(kubeconfig: Path, log: Path, resync_s: float) -> "OperatorProcess":
        """An operator that is not started yet."""
        health, metrics = _free_ports()
        return OperatorProcess(kubeconfig, log, resync_s, health, metrics)

    async def start(self) -> None:
        """Start it and wait until it is healthy, which is after its first list."""
        words = [sys.executable, "-m", *self._program(), "run", "--all-namespaces"]
        words += ["--kubeconfig", str(self.kubeconfig), "--engine-image", "none"]
        words += ["--health-port", str(self.health_port), "--metrics-port", str(self.metrics_port)]
        words += ["--resync-seconds", str(self.resync_s)]
        # Who starts again under its name is the same one, as in a pod, and waits for no Lease.
        words += ["--lease-namespace", "specdecode-system", "--identity", "bench"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log)
        async with asyncio.timeout(START_TIMEOUT_S), aiohttp.ClientSession() as session:
            while not await self._is_healthy(session):
                if self.process.poll() is not None:
                    raise RuntimeError(f"the operator ended: {self.log.read_text()[-2000:]}")
                await asyncio.sleep(0.02)

    def kill(self) -> None:
        """End it without warning."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        """End it as Kubernetes would."""
        assert self.process is not None, "start it first"
        self.last_peak_mib = self.peak_mib()
        self.process.terminate()
        self.process.wait()

    def cpu_s(self) -> float:
        """Processor time it has used."""
        assert self.process is not None, "start it first"
        text = Path("/proc", str(self.process.pid), "stat").read_text()
        fields = text.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    def peak_mib(self) -> float:
        """The most memory it has had resident, in MiB."""
        assert self.process is not None, "start it first"
        text = Path("/proc", str(self.process.pid), "status").read_text()
        (line,) = (each for each in text.splitlines() if each.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024

    async def metrics(self) -> dict[str, float]:
        """Its metrics, without their prefix, summed over labels."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.metrics_port}/metrics") as answer,
        ):
            text = await answer.text()
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = sample.name.removeprefix(PREFIX)
                found[name] = found.get(name, 0.0) + sample.value
        return found

    async def settle(self, quiet_s: float = 1.0, timeout_s: float = 240.0) -> None:
        """Wait until it has had nothing to do for a while."""
        quiet_since, before = time.monotonic(), -1.0
        async with asyncio.timeout(timeout_s):
            while time.monotonic() - quiet_since < quiet_s:
                found = await self.metrics()
                done = found.get("reconcile_total", 0.0)
                if found["queue_depth"] or done != before:
                    quiet_since, before = time.monotonic(), done
                await asyncio.sleep(0.1)

    def _program(self) -> list[str]:
        if self.callbacks is None:
            return ["specdecode_operator"]
        return ["bench.operator.timed_operator", str(self.callbacks)]

    async def _is_healthy(self, session: aiohttp.ClientSession) -> bool:
        try:
            async with session.get(f"http://127.0.0.1:{self.health_port}/healthz") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False


def _free_ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]
