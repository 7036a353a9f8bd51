"""Grammars for calls: compiled beside the event loop and the engine, within a time."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from specdecode_engine.grammar import (
    Grammar,
    GrammarCompiler,
    GrammarRefused,
    GrammarSource,
    TokenBytes,
)
from specdecode_engine.serve import errors

COMPILE_SECONDS = 10.0
# A grammar that takes for ever holds one of these, and never the threads that tokenize prompts.
COMPILE_THREADS = 2


class Grammars:
    """Compiles what calls ask for; the vocabulary is prepared when the first one asks.

    Args:
        read_tokens: returns the vocabulary; called in a thread, once.
        compile_seconds: a grammar that takes longer is refused.
    """

    def __init__(
        self, read_tokens: Callable[[], TokenBytes], compile_seconds: float = COMPILE_SECONDS
    ) -> None:
        self._read_tokens = read_tokens
        self._compile_seconds = compile_seconds
        self._pool = ThreadPoolExecutor(COMPILE_THREADS, "grammar")
        self._compiler: asyncio.Future[GrammarCompiler] | None = None

    async def compile(self, constraint: tuple[str, GrammarSource] | None) -> Grammar | None:
        """Return the grammar of a call, or raise the error that says what is wrong with it."""
        if constraint is None:
            return None
        field, source = constraint
        try:
            compiler = await self._prepare()
            work = asyncio.get_running_loop().run_in_executor(self._pool, compiler.compile, source)
            return await asyncio.wait_for(work, self._compile_seconds)
        except GrammarRefused as refusal:
            raise errors.invalid(field, f"{field}: {refusal}", "invalid_grammar") from None
        except TimeoutError:
            limit = f"{self._compile_seconds:g} s"
            message = f"{field}: it could not be read within {limit}; make it simpler"
            raise errors.invalid(field, message, "invalid_grammar") from None

    async def _prepare(self) -> GrammarCompiler:
        if self._compiler is None:
            work = partial(_make_compiler, self._read_tokens)
            self._compiler = asyncio.get_running_loop().run_in_executor(self._pool, work)
        # Shielded: a client that goes away must not take the vocabulary from the next one.
        return await asyncio.shield(self._compiler)


def _make_compiler(read_tokens: Callable[[], TokenBytes]) -> GrammarCompiler:
    return GrammarCompiler(read_tokens())
