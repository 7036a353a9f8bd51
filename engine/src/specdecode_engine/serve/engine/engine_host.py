"""Executes the server's commands where the engine runs: between steps, or in other threads."""

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from specdecode_engine.adaptive.policy import DraftRefused, StageDraft, TableRefused
from specdecode_engine.batch.adapters import AdapterRefused, ChangeAdapters
from specdecode_engine.batch.request import Output, Request, RequestRefused
from specdecode_engine.grammar import GrammarCompiler, GrammarRefused, TokenBytes
from specdecode_engine.serve.engine.compile_threads import CompileThreads, compile_grammar
from specdecode_engine.serve.engine.core import Core, EngineFailed, GrammarBusy, Load
from specdecode_engine.serve.engine.engine_thread import EngineThread
from specdecode_engine.serve.engine.followers import Compile, FollowerCommand, LeadingCore, Prepare
from specdecode_engine.serve.engine.messages import (
    Abort,
    Connect,
    Ended,
    EngineCall,
    EngineLink,
    Event,
    ExchangeDraft,
    Failed,
    LoadAdapter,
    PrepareGrammars,
    Progressed,
    Receive,
    Reply,
    Started,
    StepCommand,
    StepOutputs,
    Submit,
    UnloadAdapter,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

COMPILE_WAIT_SECONDS = 5.0
"""How long a new request waits for a thread that compiles its grammar."""
ALIVE_SECONDS = 1.0


class EngineHost:
    """An engine thread and the threads that do for it what takes long.

    `send` and `stop` may be called from any thread.

    Args:
        load: builds the engine, on the engine thread.
        emit: called with every event, on any thread.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        load: Load,
        emit: Callable[[Event], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load = load
        self._emit = emit
        self._clock = clock
        self._stage_draft: StageDraft | None = None
        self._change_adapters: ChangeAdapters | None = None
        self._started: Started | None = None
        self._compiler: GrammarCompiler | None = None
        self._compiling: set[str] = set()  # ids of requests whose grammar is being compiled
        self._lock = threading.Lock()
        self._compile_threads = CompileThreads()
        self._thread = EngineThread(
            self._load_core,
            on_ready=self._report_start,
            on_outputs=self._report_outputs,
            on_failure=self._report_failure,
            clock=clock,
        )

    def start(self) -> None:
        self._thread.start()

    def send(self, call: EngineCall) -> None:
        command = call.command
        match command:
            case PrepareGrammars():
                self._work(False, call.number, self._prepare, command.tokens)
            case ExchangeDraft():
                exchange = partial(self._exchange, call.number, command.folder)
                threading.Thread(target=exchange, name="draft", daemon=True).start()
            case LoadAdapter():
                load = partial(self._load_adapter, call.number, command)
                threading.Thread(target=load, name="adapter", daemon=True).start()
            case UnloadAdapter():
                self._thread.put(partial(self._unload_adapter, call.number, command.name))
            case Submit() if command.constrained:
                with self._lock:
                    self._compiling.update(command.request_ids)
                work = self._compile, command, self._clock()
                self._work(command.is_continued, call.number, *work)
            case Abort():
                with self._lock:
                    self._compiling.difference_update(command.request_ids)
                    self._put(call.number, command)
            case _:
                self._put(call.number, command)

    def stop(self) -> None:
        """End the thread after the current step."""
        self._compile_threads.shutdown()
        self._thread.put(self._report_end)
        self._thread.stop()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; false when the thread is still busy after `timeout_s`."""
        return self._thread.join(timeout_s)

    async def close(self, timeout_s: float) -> bool:
        self.stop()
        return await asyncio.to_thread(self.join, timeout_s)

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def step_seconds(self) -> float:
        return self._thread.step_seconds()

    def latest_step(self) -> str:
        return self._thread.latest_step()

    def restart(self, error: Exception) -> bool:
        """A thread cannot be ended from outside."""
        return False

    def _load_core(self) -> Core:
        loaded = self._load(lambda progress: self._emit(Progressed(progress)))
        core, self._stage_draft = loaded.core, loaded.stage_draft
        self._change_adapters = loaded.change_adapters
        self._started = Started(
            core.context_length,
            core.eos_token_ids,
            loaded.model_folder,
            loaded.table,
            core.snapshot(),
            json.loads(json.dumps(dict(loaded.facts), default=str)),  # in types of no library
        )
        return core

    def _report_start(self) -> None:
        assert self._started is not None
        self._emit(self._started)
        self._started = None

    def _report_outputs(self, outputs: list[Output]) -> None:
        for output in outputs:
            if output.suspended is not None:
                with suppress(RuntimeError):  # the threads have ended, and the engine ends
                    self._compile_threads.submit(True, self._resume, output.suspended)
        self._emit(StepOutputs([each for each in outputs if each.suspended is None]))

    def _report_failure(self, error: Exception) -> None:
        self._emit(Failed(error, self._thread.snapshot))

    def _report_end(self, core: Core) -> None:
        self._thread.take_snapshot(core)
        self._emit(Ended(self._thread.snapshot))

    def _put(self, number: int, command: StepCommand) -> None:
        self._thread.put(partial(self._execute, number, command))

    def _execute(self, number: int, command: StepCommand, core: Core) -> None:
        value, error = None, None
        try:
            value = command(core)
        except (RequestRefused, TableRefused, EngineFailed) as refusal:
            error = refusal
        self._reply(number, value, error)

    def _reply(self, number: int, value: object = None, error: Exception | None = None) -> None:
        if number:
            self._emit(Reply(number, value, error))

    def _work(
        self, is_continued: bool, number: int, work: Callable[..., None], *arguments: object
    ) -> None:
        self._compile_threads.submit(is_continued, self._answer, number, work, *arguments)

    def _answer(self, number: int, work: Callable[..., None], *arguments: object) -> None:
        """Do work that replies to a command; what it raises is the reply: somebody waits."""
        try:
            work(number, *arguments)
        except (GrammarBusy, GrammarRefused, RequestRefused) as refusal:
            self._reply(number, None, refusal)
        except Exception as error:
            log.exception("a command to the engine failed")
            self._reply(number, None, EngineFailed(f"{type(error).__name__} in the engine"))

    def _prepare(self, number: int, tokens: TokenBytes) -> None:
        """Build the compiler of a vocabulary.

        The library holds the interpreter meanwhile, 0.3 s for 128 000 tokens: at the first grammar
        it would stop all requests.
        """
        self._share(Prepare(tokens))
        self._compiler = GrammarCompiler(tokens)
        self._reply(number)

    def _compile(self, number: int, command: Submit, queued_s: float) -> None:
        """Compile the grammars of requests and submit them, unless they were aborted meanwhile."""
        is_late = self._clock() - queued_s > COMPILE_WAIT_SECONDS
        if is_late and not command.is_continued:  # the client has a part of that answer
            raise GrammarBusy("other grammars are being compiled; try again")
        assert self._compiler is not None, "the vocabulary was not prepared"
        # Prompts come with the requests, which are submitted afterwards.
        self._share(Compile(tuple(replace(each, prompt_ids=()) for each in command.constrained)))
        try:
            compiled = [compile_grammar(each, self._compiler) for each in self._wanted(command)]
        except GrammarRefused as refusal:
            raise RequestRefused(f"the grammar is refused: {refusal}") from None
        with self._lock:
            left = [each for each in compiled if each.request_id in self._compiling]
            if left:
                self._put(number, Submit(tuple(left)))
            self._compiling.difference_update(command.request_ids)

    def _resume(self, request: Request) -> None:
        """Compile the grammar of a suspended request again, and let the request continue."""
        assert self._compiler is not None, "the vocabulary was not prepared"
        self._share(Compile((replace(request, grammar=None, prompt_ids=()),)))
        try:
            request = compile_grammar(request, self._compiler)
        except Exception:  # with the grammar that has failed, the request ends with its error
            log.exception("the grammar of a running request was not compiled again")
        self._thread.put(lambda core: core.resume(request))

    def _wanted(self, command: Submit) -> Iterator[Request]:
        """Yield the requests, each unless it was aborted meanwhile."""
        for request in command.requests:
            with self._lock:
                is_wanted = request.request_id in self._compiling
            if is_wanted:
                yield request

    def _share(self, command: FollowerCommand) -> None:
        """Have the followers of a divided engine execute a command, between two steps."""

        def send(core: Core) -> None:
            if isinstance(core, LeadingCore):
                core.followers.send(command)

        self._thread.put(send)

    def _exchange(self, number: int, folder: Path) -> None:
        """Read a draft and copy it in pieces, each between two steps."""
        try:
            if self._stage_draft is None:
                message = "this engine has no draft model that could be exchanged"
                raise DraftRefused(message, needs_restart=True)
            for piece in self._stage_draft(folder):
                self._between_steps(piece)
        except (DraftRefused, EngineFailed) as refusal:
            self._reply(number, None, refusal)
        except Exception as error:
            log.exception("the draft in %s cannot be exchanged", folder)
            self._reply(number, None, DraftRefused(f"{type(error).__name__}: {error}"))
        else:
            self._reply(number)

    def _load_adapter(self, number: int, command: LoadAdapter) -> None:
        """Read an adapter, and add it between two steps."""
        try:
            if self._change_adapters is None:
                message = "this engine keeps no memory for adapters; start it with --lora-root"
                raise AdapterRefused(message)
            add = self._change_adapters.stage(command.name, command.folder)
            facts = self._on_core(lambda core: add())
            self._reply(number, json.loads(json.dumps(dict(facts))))
        except (AdapterRefused, EngineFailed) as refusal:
            self._reply(number, None, refusal)
        except Exception as error:
            log.exception("the adapter in %s cannot be loaded", command.folder)
            self._reply(number, None, AdapterRefused(f"{type(error).__name__}: {error}"))

    def _unload_adapter(self, number: int, name: str, core: Core) -> None:
        change = self._change_adapters
        self._reply(number, change is None or change.remove(name))

    def _between_steps(self, function: Callable[[], None]) -> None:
        """Run a function on the engine thread, and wait for its end."""
        self._on_core(lambda core: function())

    def _on_core(self, function: Callable[[Core], T]) -> T:
        """Run a function between two steps, and return what it returns."""
        done: Future[T] = Future()

        def run(core: Core) -> None:
            done.set_result(function(core))

        self._thread.put(run)
        while not done.done():
            if not self._thread.is_alive():
                raise EngineFailed("the engine has ended")
            wait([done], ALIVE_SECONDS)
        return done.result()


def in_thread(load: Load, clock: Callable[[], float]) -> Connect:
    """Return how to reach an engine in this process, in a thread of its own."""

    def connect(receive: Receive) -> EngineLink:
        loop = asyncio.get_running_loop()

        def emit(event: Event) -> None:
            # The loop may be closed when a stuck step ends after the server has left.
            if not loop.is_closed():
                loop.call_soon_threadsafe(receive, event)

        return EngineHost(load, emit, clock)

    return connect
