"""Starts the programs of one cluster: where they log, how they are marked, when they end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from localnode import processes
from localnode.paths import Paths
from localnode.processes import Process

MARK = "SPECDECODE_NODE"  # in the environment of everything that belongs to a node
NO_PROXY = {"NO_PROXY": "*", "no_proxy": "*"}  # all that these programs speak to is here


@dataclass(frozen=True, slots=True)
class Launcher:
    """One way to start programs, shared by all programs of a cluster."""

    logs: Path
    prefix: tuple[str, ...]
    environment: dict[str, str]
    remember: Callable[[Process], None]

    @staticmethod
    def for_node(paths: Paths) -> "Launcher":
        """Start programs that stay when we end, marked and recorded so that `down` finds them."""
        return Launcher(
            logs=paths.logs,
            prefix=(),
            environment={MARK: str(paths.state), **NO_PROXY},
            remember=lambda process: processes.write_record(paths.records, process),
        )

    @staticmethod
    def for_us(logs: Path, started: list[Process]) -> "Launcher":
        """Start programs that the kernel ends with us: with the thread that starts them."""
        return Launcher(
            logs=logs,
            prefix=("setpriv", "--pdeathsig", "KILL"),
            environment=NO_PROXY,
            remember=started.append,
        )

    def launch(self, name: str, argv: Sequence[str | Path]) -> Process:
        """Start one program and remember it."""
        log = self.logs / f"{name}.log"
        words = [*self.prefix, *argv]
        process = processes.start(name, words, log=log, environment=self.environment)
        self.remember(process)
        return process

    def wait(
        self, process: Process, condition: Callable[[], bool], what: str, timeout_s: float = 90
    ) -> None:
        """Wait for what this program is to bring about."""
        log = self.logs / f"{process.name}.log"
        processes.wait_until(condition, what, process=process, log=log, timeout_s=timeout_s)
