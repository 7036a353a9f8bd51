"""Grammars of requests: each new one is tried in a child process before the engine compiles it."""

import asyncio
import hashlib
import logging
import math
import queue
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from specdecode_engine.grammar import (
    GrammarRefused,
    GrammarSource,
    TokenBytes,
    TranslatedGrammar,
    TrialLimits,
    TrialProcess,
    TrialUnavailable,
)
from specdecode_engine.serve import errors

log = logging.getLogger(__name__)

WAIT_SECONDS = 5.0
TRIAL_PROCESSES = 2
"""Grammars that are tried at a time; there is a process more, for one that has to start again."""
MAX_CACHED_CHARS = 16 * 2**20

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GrammarTrial:
    """The result of trying a grammar: its translation, or the reason of its refusal."""

    translated: str = ""
    refusal: str = ""


class NoFreeWorker(Exception):
    """No process became free within the limit."""


class Workers:
    """An executor whose callers wait for a free worker, but not for long."""

    def __init__(self, executor: Executor, count: int, wait_seconds: float) -> None:
        self._executor = executor
        self._free = asyncio.Semaphore(count)
        self._wait_seconds = wait_seconds

    async def run(self, function: Callable[[], T]) -> T:
        """Return what a function returns in a worker, or raise `NoFreeWorker`."""
        try:
            async with asyncio.timeout(self._wait_seconds):
                await self._free.acquire()
        except TimeoutError:
            raise NoFreeWorker from None
        work = asyncio.get_running_loop().run_in_executor(self._executor, function)
        # When it is done, not when the caller has gone: the worker is busy until then.
        work.add_done_callback(lambda _: self._free.release())
        return await asyncio.shield(work)

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


class TrialCache:
    """The results of the latest trials, by hash of the source, and the trials that still run.

    Equal grammars of simultaneous requests share one trial. Compiled grammars are not shared: an
    output that exhausts a grammar's limits would end the others too.
    """

    def __init__(self, max_chars: int = MAX_CACHED_CHARS) -> None:
        self._max_chars = max_chars
        self._chars = 0
        self._trials: OrderedDict[bytes, asyncio.Future[GrammarTrial]] = OrderedDict()

    async def get(
        self, source: GrammarSource, start: Callable[[], "asyncio.Future[GrammarTrial]"]
    ) -> GrammarTrial:
        """Return the result for a source; `start` starts a trial that is not known yet."""
        key = _digest(source)
        trial = self._trials.get(key)
        if trial is None:
            trial = self._trials[key] = start()
            trial.add_done_callback(partial(self._keep, key))
        self._trials.move_to_end(key)
        return await asyncio.shield(trial)

    def _keep(self, key: bytes, trial: "asyncio.Future[GrammarTrial]") -> None:
        """Keep a result; forget a trial without one, which may be repeated."""
        if trial.cancelled() or trial.exception() is not None:
            del self._trials[key]
            return
        self._chars += _size(trial)
        while self._chars > self._max_chars:
            oldest = next(key for key, each in self._trials.items() if each.done())
            self._chars -= _size(self._trials.pop(oldest))


def _size(trial: "asyncio.Future[GrammarTrial]") -> int:
    result = trial.result()
    return 256 + len(result.translated) + len(result.refusal)


def _digest(source: GrammarSource) -> bytes:
    start = f"{source.kind}/{source.is_strict}/"
    return hashlib.sha256((start + source.text).encode(errors="surrogatepass")).digest()


class Grammars:
    """Tries and translates grammars, once `prepare` was called.

    Args:
        limits: what a trial may take.
        wait_seconds: how long a request waits for a free process.
    """

    def __init__(
        self, limits: TrialLimits | None = None, wait_seconds: float = WAIT_SECONDS
    ) -> None:
        self._limits = limits or TrialLimits()
        self._wait_seconds = wait_seconds
        trials = ThreadPoolExecutor(TRIAL_PROCESSES, "grammar-trial")
        self._starting = ThreadPoolExecutor(TRIAL_PROCESSES + 1, "grammar-start")
        self._trying = Workers(trials, TRIAL_PROCESSES, wait_seconds)
        self._processes: list[TrialProcess] = []
        self._idle: queue.SimpleQueue[TrialProcess] = queue.SimpleQueue()
        self.refusal: str | None = "the model is not loaded"
        """Why every grammar is refused; None if grammars can be compiled."""
        self._cache = TrialCache()
        self._has_tried = False

    def prepare(self, tokens: TokenBytes) -> None:
        """Take the vocabulary, before any request; one without an end refuses every grammar."""
        self.refusal = tokens.refusal
        if self.refusal is not None:
            return
        count = TRIAL_PROCESSES + 1
        self._processes = [TrialProcess(tokens, self._limits) for _ in range(count)]
        for process in self._processes:
            self._idle.put(process)

    async def translate(self, field: str, source: GrammarSource) -> TranslatedGrammar:
        """Return the grammar that a field of a request contains, for the engine to compile.

        Raises `HttpError`: 400 if it is invalid, not supported, or exceeds a limit; 503 if no
        process is free for it.
        """
        try:
            if self.refusal is not None:
                raise GrammarRefused(self.refusal)
            trial = await self._cache.get(
                source, lambda: asyncio.ensure_future(self._run_trial(source))
            )
            if trial.refusal:
                raise GrammarRefused(trial.refusal)
            return TranslatedGrammar(source, trial.translated)
        except GrammarRefused as refusal:
            raise errors.invalid(field, f"{field}: {refusal}", "invalid_grammar") from None
        except (NoFreeWorker, TrialUnavailable) as error:
            retry_after_s = max(1, math.ceil(self._wait_seconds))
            reason = str(error) or "other grammars are being compiled"
            message = f"{field}: the grammar was not compiled: {reason}; try again"
            raise errors.unavailable(message, "grammar_unavailable", retry_after_s) from None

    def close(self) -> None:
        """End the child processes."""
        for process in self._processes:
            process.close()
        self._trying.close()
        self._starting.shutdown(wait=False, cancel_futures=True)

    async def _run_trial(self, source: GrammarSource) -> GrammarTrial:
        return await self._trying.run(lambda: self._try(source))

    def _try(self, source: GrammarSource) -> GrammarTrial:
        process = self._idle.get()
        if not self._has_tried:  # models of which no grammar is asked need no processes
            self._has_tried = True
            for each in self._processes:
                self._starting.submit(each.start)
        try:
            return GrammarTrial(translated=process.try_grammar(source))
        except GrammarRefused as refusal:
            return GrammarTrial(refusal=str(refusal))
        except TrialUnavailable as error:
            log.warning("a grammar was not tried: %s", error)
            raise
        finally:
            if process.pid is None:
                self._starting.submit(self._start_again, process)
            else:
                self._idle.put(process)

    def _start_again(self, process: TrialProcess) -> None:
        """Start a process that a grammar has ended, while others take the next grammars."""
        try:
            process.start()
        except TrialUnavailable as error:
            log.warning("a process that tries grammars did not start: %s", error)
        finally:
            self._idle.put(process)
