"""What server and engine send each other, within a process or between two: it can be pickled."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from specdecode_api.report import StartProgress
from specdecode_engine.adaptive.table import RangeTable
from specdecode_engine.batch.request import Output, Request, RequestRefused
from specdecode_engine.grammar import TokenBytes
from specdecode_engine.serve.engine.core import Core, EngineFailed
from specdecode_engine.stats.snapshot import CoreSnapshot

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Submit:
    """Queue all of the requests, or none of them."""

    requests: tuple[Request, ...]

    @property
    def request_ids(self) -> tuple[str, ...]:
        return tuple(each.request_id for each in self.requests)

    @property
    def constrained(self) -> tuple[Request, ...]:
        """The requests with a grammar, each of which is compiled: they share no limits."""
        return tuple(each for each in self.requests if each.translated_grammar is not None)

    @property
    def is_continued(self) -> bool:
        """Whether a request continues an answer."""
        return any(each.output_ids for each in self.requests)

    def __call__(self, core: Core) -> None:
        for index, request in enumerate(self.requests):
            try:
                core.submit(request)
            except Exception as error:
                Abort(self.request_ids[:index])(core)
                if isinstance(error, RequestRefused):
                    raise
                log.exception("the engine core failed to accept a request")
                raise EngineFailed("the engine core failed to accept the request") from error


@dataclass(frozen=True, slots=True)
class Abort:
    """Drop requests; unknown ids have no effect."""

    request_ids: tuple[str, ...]

    def __call__(self, core: Core) -> None:
        for request_id in self.request_ids:
            core.abort(request_id)


@dataclass(frozen=True, slots=True)
class Reload:
    """Choose draft steps by another table; refused with `TableRefused`."""

    table: RangeTable

    def __call__(self, core: Core) -> None:
        core.reload(self.table)


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Return state and totals as of now."""

    def __call__(self, core: Core) -> CoreSnapshot:
        return core.snapshot()


@dataclass(frozen=True, slots=True)
class PrepareGrammars:
    """Prepare the vocabulary, before the first request with a grammar."""

    tokens: TokenBytes


@dataclass(frozen=True, slots=True)
class ExchangeDraft:
    """Read the draft in a folder and copy it over the running one; refused with `DraftRefused`."""

    folder: Path


@dataclass(frozen=True, slots=True)
class LoadAdapter:
    """Read the adapter in a folder; refused with `AdapterRefused`. The reply has its facts."""

    name: str
    folder: Path


@dataclass(frozen=True, slots=True)
class UnloadAdapter:
    """Release an adapter unless a request has it; the reply is whether it is gone."""

    name: str


StepCommand = Submit | Abort | Reload | TakeSnapshot
"""Executed between two steps."""

Command = StepCommand | PrepareGrammars | ExchangeDraft | LoadAdapter | UnloadAdapter


class EngineCall(NamedTuple):
    """A command; the `Reply` to it has the same number. 0: no reply is wanted."""

    number: int
    command: Command


class Reply(NamedTuple):
    """The result of a command, or why it was refused."""

    number: int
    value: object
    error: Exception | None


class Progressed(NamedTuple):
    """What the engine does before it serves."""

    progress: StartProgress


@dataclass(frozen=True, slots=True)
class Started:
    """The engine can be used. The fields are those of `Core` and `LoadedEngine`."""

    context_length: int
    eos_token_ids: frozenset[int]
    model_folder: Path
    table: RangeTable | None
    snapshot: CoreSnapshot
    facts: Mapping[str, object] = field(default_factory=dict)


class StepOutputs(NamedTuple):
    """All outputs of a step."""

    outputs: Sequence[Output]


class Lost(NamedTuple):
    """The engine died and starts again; what it was running is lost."""

    error: Exception


class Failed(NamedTuple):
    """The engine ended with an error and does not start again."""

    error: Exception
    snapshot: CoreSnapshot | None


class Ended(NamedTuple):
    """The engine was stopped."""

    snapshot: CoreSnapshot


Event = Reply | Progressed | Started | StepOutputs | Lost | Failed | Ended


class EngineLink(Protocol):
    """The engine as the server reaches it, in a thread or in a process. Used on the event loop."""

    def start(self) -> None:
        """Begin to load the engine."""

    def send(self, call: EngineCall) -> None:
        """Have a command executed as soon as possible, after those that came before it."""

    async def close(self, timeout_s: float) -> bool:
        """End the engine after its current step; false if it is still busy after `timeout_s`."""

    def is_alive(self) -> bool:
        """Whether the engine runs, or will run again."""

    def step_seconds(self) -> float:
        """How long the current step has been running; 0 between steps."""

    def latest_step(self) -> str:
        """What the newest step computes, for people to read."""

    def restart(self, error: Exception) -> bool:
        """Replace a stuck engine by a new one if that is possible; `error` is the reason."""


Receive = Callable[[Event], None]
"""Takes the events of an engine, on the event loop."""

Connect = Callable[[Receive], EngineLink]
"""Makes the link that an engine is reached by."""
