"""The threads that compile grammars of requests and follow the answers that they continue."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar

from specdecode_engine.batch.request import Request
from specdecode_engine.grammar import STACK_BYTES, GrammarCompiler, start_threads

COMPILE_THREADS = 2
WORK_SECONDS = 0.0005
REST_SECONDS = 2 * WORK_SECONDS

T = TypeVar("T")


class CompileThreads:
    """Threads with the stack that grammars need: for new answers, and for continued ones.

    To follow a long answer can take seconds, for which no new answer waits. They are apart from
    those that tokenize prompts, which a slow grammar must not occupy.
    """

    def __init__(self) -> None:
        self._new = start_threads(STACK_BYTES, COMPILE_THREADS, "grammar")
        self._continued = start_threads(STACK_BYTES, COMPILE_THREADS, "continued-grammar")

    def submit(self, is_continued: bool, work: Callable[..., T], *arguments: object) -> Future[T]:
        pool = self._continued if is_continued else self._new
        return pool.submit(work, *arguments)

    def shutdown(self) -> None:
        """Begin no further work."""
        for pool in (self._new, self._continued):
            pool.shutdown(wait=False, cancel_futures=True)


class Yielding:
    """Lets other threads run: called often, it rests for twice as long as the work before it.

    The library holds the interpreter while it consumes a token, 10 µs, and a thread that needs the
    interpreter waits 5 ms for one that does not rest: at each operation of a step.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        rest: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock = clock
        self._rest = rest
        self._since_s = clock()

    def __call__(self) -> None:
        if self._clock() - self._since_s >= WORK_SECONDS:
            self._rest(REST_SECONDS)
            self._since_s = self._clock()


def compile_grammar(request: Request, compiler: GrammarCompiler) -> Request:
    """Return a request with its compiled grammar, after the output that it already has.

    Raises:
        GrammarRefused: the grammar is invalid.
    """
    if request.translated_grammar is None:
        return request
    grammar = compiler.compile_translated(request.translated_grammar)
    if request.output_ids:
        grammar.prepare(request.output_ids, request.sampling.ignore_eos, Yielding())
    return replace(request, grammar=grammar)
