"""Compiles grammars of requests in threads of their own, within a time limit."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from specdecode_engine.grammar import (
    STACK_BYTES,
    Grammar,
    GrammarCompiler,
    GrammarRefused,
    GrammarSource,
    TokenBytes,
)
from specdecode_engine.serve import errors

COMPILE_SECONDS = 10.0
# Threads apart from those that tokenize prompts, which a slow grammar must not occupy.
COMPILE_THREADS = 2


class Grammars:
    """Compiles grammars; the vocabulary is prepared at the first one.

    Args:
        read_tokens: returns the vocabulary; called in a thread, once.
        compile_seconds: a grammar that takes longer is refused.
    """

    def __init__(
        self, read_tokens: Callable[[], TokenBytes], compile_seconds: float = COMPILE_SECONDS
    ) -> None:
        self._read_tokens = read_tokens
        self._compile_seconds = compile_seconds
        self._pool = _start_threads()
        self._compiler: asyncio.Future[GrammarCompiler] | None = None

    async def compile(self, field: str, source: GrammarSource) -> Grammar:
        """Return the grammar that a field of a request contains.

        Raises `HttpError` if it is invalid, not supported, or takes too long to compile.
        """
        try:
            compiler = await self._prepare()
            work = asyncio.get_running_loop().run_in_executor(self._pool, compiler.compile, source)
            return await asyncio.wait_for(work, self._compile_seconds)
        except GrammarRefused as refusal:
            raise errors.invalid(field, f"{field}: {refusal}", "invalid_grammar") from None
        except TimeoutError:
            limit = f"{self._compile_seconds:g} s"
            message = f"{field}: the grammar could not be compiled within {limit}; simplify it"
            raise errors.invalid(field, message, "invalid_grammar") from None

    async def _prepare(self) -> GrammarCompiler:
        if self._compiler is None:
            self._compiler = asyncio.get_running_loop().run_in_executor(
                self._pool, lambda: GrammarCompiler(self._read_tokens())
            )
        # Shielded: a client that disconnects must not cancel the preparation for others.
        return await asyncio.shield(self._compiler)


def _start_threads() -> ThreadPoolExecutor:
    """Start all compile threads now: the stack size of new threads is a process-wide setting."""
    all_started = threading.Barrier(COMPILE_THREADS)
    default_bytes = threading.stack_size(STACK_BYTES)
    try:
        pool = ThreadPoolExecutor(COMPILE_THREADS, "grammar")
        for _ in range(COMPILE_THREADS):
            pool.submit(all_started.wait)
    finally:
        threading.stack_size(default_bytes)
    return pool
