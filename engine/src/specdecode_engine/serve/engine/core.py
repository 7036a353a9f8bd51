"""The interface of the engine core that the server uses, and the result of loading one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Protocol

from specdecode_api.boot import EngineBoot
from specdecode_api.report import StartProgress, TerminationReason
from specdecode_engine.adaptive.policy import StageDraft
from specdecode_engine.adaptive.table import RangeTable
from specdecode_engine.batch.adapters import ChangeAdapters
from specdecode_engine.batch.request import Output, Request
from specdecode_engine.process import keep_freed_memory
from specdecode_engine.process.start_progress import ShowProgress
from specdecode_engine.stats.snapshot import CoreSnapshot


class Core(Protocol):
    """The engine core. One thread owns it; no method may be called from another thread."""

    @property
    def context_length(self) -> int:
        """Maximum tokens of one request, prompt and generated tokens together."""

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end a sequence."""

    @property
    def latest_step(self) -> str:
        """Draft steps, batch size and CUDA graph of the newest decode step, for people to read.

        For any thread, also while a step is running.
        """

    def submit(self, request: Request) -> None:
        """Queue a request; raises `RequestTooLong` or `QueueFull`."""

    def resume(self, request: Request) -> None:
        """Continue a request that an output suspended, with its grammar compiled again.

        An unknown id has no effect.
        """

    def abort(self, request_id: str) -> None:
        """Drop a request; an unknown id has no effect."""

    def step(self) -> list[Output]:
        """Run one step; empty when it added nothing to any request."""

    def has_work(self) -> bool:
        """Whether a step would do anything."""

    def idle_step(self) -> bool:
        """Do one short piece of deferred work while nothing runs; return whether any is left."""

    def reload(self, table: RangeTable) -> None:
        """Choose draft steps by another table; raises `TableRefused` and keeps the old one."""

    def snapshot(self) -> CoreSnapshot:
        """State and totals, as plain numbers."""


def make_links(size: int) -> list[list[Connection]]:
    """Make the links of each rank: of the leader to every follower, and of each to the leader."""
    pairs = [Pipe() for _ in range(size - 1)]
    return [[leaders for leaders, _ in pairs], *([own] for _, own in pairs)]


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Which rank a process is, and how it reaches the others; inherited when it starts."""

    rank: int
    size: int
    store: str  # path of a file by which the processes find each other
    file_descriptors: tuple[int, ...]  # of the links

    def connect(self) -> tuple[Connection, ...]:
        """Return the links to the followers, or that to the leader."""
        return tuple(map(Connection, self.file_descriptors))


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """A core that is ready to step, and the checkpoint folder with its tokenizer.

    `facts` is shown unchanged by /server_info: device, dtype, chosen kernels, and the like. `table`
    is that of the policy at start, where the draft determines a part of it.
    """

    core: Core
    model_folder: Path
    facts: Mapping[str, object] = field(default_factory=dict)
    stage_draft: StageDraft | None = None  # where drafts can be exchanged
    table: RangeTable | None = None
    change_adapters: ChangeAdapters | None = None  # where adapters may come


Load = Callable[[ShowProgress], LoadedEngine]


class EngineFailed(Exception):
    """The core raised; no request that it was running will finish."""


class GrammarBusy(Exception):
    """No thread became free to compile the grammar of a request."""


class ProcessFailed(EngineFailed):
    """The engine process died, or reported an error.

    Args:
        text: what happened.
        reason: that of the termination message.
    """

    def __init__(
        self, text: str, reason: TerminationReason = TerminationReason.ENGINE_FAILED
    ) -> None:
        super().__init__(text, reason)
        self.reason = reason

    def __str__(self) -> str:
        return str(self.args[0])


def load_engine(
    boot: EngineBoot,
    progress: ShowProgress,
    place: RankPlace | None = None,
    links: tuple[Connection, ...] = (),
) -> LoadedEngine:
    """Load the checkpoints of a boot file and build a core.

    Args:
        place: which rank this process is, where the target is divided.
        links: to the other ranks.
    """
    progress(StartProgress(stage="importing torch"))
    # Imported here: torch takes seconds, and the server answers its probes meanwhile. A server
    # whose engine is another process never imports it.
    from specdecode_engine.ranks import ALONE
    from specdecode_engine.startup.build import build_core
    from specdecode_engine.startup.device import choose_device, join_ranks

    ranks = ALONE
    if place is not None:
        progress(StartProgress(stage=f"waiting for {place.size} ranks"))
        device = choose_device(boot.device)
        ranks = join_ranks(place.rank, place.size, place.store, links, device)
    progress(StartProgress(stage="loading checkpoints"))
    shown = progress if ranks.rank == 0 else None
    core = build_core(boot, progress=shown, on_weights=keep_freed_memory, ranks=ranks)
    table = core.scheduler.drafting.policy.table
    return LoadedEngine(
        core,
        Path(boot.model.path),
        core.facts,
        core.stage_draft,
        table,
        core.change_adapters,
    )
