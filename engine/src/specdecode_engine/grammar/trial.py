"""Compiles and follows a grammar in a process with limits, before the engine compiles it.

A grammar is a program from a client. It may run for minutes, take gigabytes, or make the library
end the process; therefore a child process meets each one first. It has the engine's version of the
library, limits and stack sizes, so that what passes here passes there.
"""

import json
import math
import os
import pickle
import random
import resource
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specdecode_engine.frames import receive_frame, send_frame
from specdecode_engine.grammar.compiler import MAX_LINE_CHARS, GrammarCompiler
from specdecode_engine.grammar.matcher import Grammar, GrammarFault, Words
from specdecode_engine.grammar.nesting import STACK_BYTES, start_threads
from specdecode_engine.grammar.source import GrammarKind, GrammarRefused, GrammarSource

WALK_TOKENS = 256
_REJECTED_EVERY = 8  # steps between draft tokens that are taken back


@dataclass(frozen=True, slots=True)
class TrialLimits:
    """What one grammar may take.

    Attributes:
        cpu_seconds: CPU time to compile it and to follow it for `WALK_TOKENS` tokens.
        memory_bytes: address space beyond that of the process with the vocabulary.
        seconds: time after which the process is killed, however busy the machine is.
        start_seconds: the same for the start of the process.
    """

    cpu_seconds: int = 5
    memory_bytes: int = 512 * 2**20
    seconds: float = 30.0
    start_seconds: float = 60.0

    def too_large(self) -> str:
        return (
            f"compiling it needs more than {self.memory_bytes >> 20} MiB of memory, or nests too "
            "deep; simplify it"
        )


def walk(grammar: Grammar, num_words: int, num_tokens: int = WALK_TOKENS) -> None:
    """Follow a grammar along random tokens, from the start again where it ends.

    Some tokens are taken back and appended again, as after a rejected draft. The path is the same
    for every run.

    Args:
        num_words: words of a mask.

    Raises:
        GrammarRefused: the grammar fails within `num_tokens` tokens.
    """
    rng, words = random.Random(0), np.zeros(num_words, dtype=np.int32)
    matcher = grammar.follow(())
    for step in range(num_tokens):
        try:
            matcher.fill(words)
            tokens = [token for token in _set_bits(words) if not matcher.ends_with(token)]
            if not tokens:
                matcher = grammar.follow(())
                continue
            token = rng.choice(tokens)
            matcher.advance(token)
            if step % _REJECTED_EVERY == 0:
                matcher.fill(words)
                matcher.rollback()
                matcher.advance(token)
        except GrammarFault as fault:
            raise GrammarRefused(
                f"it is too complex: it fails after {step} tokens of output ({fault}); simplify it"
            ) from None


def _set_bits(words: Words) -> list[int]:
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    found: list[int] = np.flatnonzero(bits).tolist()
    return found


def serve(file_descriptor: int) -> None:
    """Run the child process: read the vocabulary and the limits, then try grammars until the end.

    A job is JSON, `[kind, text, is_strict]`. Its answer is `{"translated": …}` with the translated
    grammar or `{"refusal": …}`, and `is_last` if the process ends after it: memory that the library
    keeps must not be missing for the next grammar.
    """
    channel = socket.socket(fileno=file_descriptor)
    os.dup2(2, 1)  # whatever a library prints
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    Path("/proc/self/oom_score_adj").write_text("1000")
    tokens, limits = pickle.loads(receive_frame(channel) or b"")
    trial = _Trial(GrammarCompiler(tokens))
    base_bytes = _address_space()
    _set_soft_limit(resource.RLIMIT_AS, base_bytes + limits.memory_bytes)
    send_frame(channel, b"{}")
    while (job := receive_frame(channel)) is not None:
        _set_soft_limit(resource.RLIMIT_CPU, math.ceil(time.process_time()) + limits.cpu_seconds)
        try:
            answer: dict[str, object] = {"translated": trial.run(job)}
        except GrammarRefused as refusal:
            answer = {"refusal": str(refusal)}
        except (MemoryError, SystemError):  # memory was short for either
            answer = {"refusal": limits.too_large(), "is_last": True}
        except Exception as error:
            answer = {"refusal": _library_error(error)}
        except BaseException as panic:  # of Rust, after which the library's state is not known
            answer = {"refusal": _library_error(panic), "is_last": True}
        if _address_space() > base_bytes + limits.memory_bytes // 2:
            answer["is_last"] = True
        send_frame(channel, json.dumps(answer).encode())
        if answer.get("is_last"):
            return


def _library_error(error: BaseException) -> str:
    """Return the refusal of a grammar at which the library raised something."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"the grammar library cannot read it: {lines[0][:MAX_LINE_CHARS]}; simplify it"


class _Trial:
    """Two threads with the engine's stack sizes: one compiles grammars, one follows them."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self._compiling = start_threads(STACK_BYTES)
        self._following = start_threads(0)

    def run(self, job: bytes) -> str:
        """Return the grammar of a job, translated, or raise `GrammarRefused`."""
        kind, text, is_strict = json.loads(job)
        source = GrammarSource(GrammarKind(kind), text, is_strict)
        compile_ = self._compiler.translate_and_compile
        translated, grammar = self._compiling.submit(compile_, source).result()
        self._following.submit(walk, grammar, self._compiler.num_words).result()
        return translated


def _set_soft_limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    soft = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (soft, hard))


def _address_space() -> int:
    """Return the bytes of address space of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()
