"""The child process that tries grammars, as seen from the engine."""

import json
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from typing import Any

from specdecode_engine.frames import receive_frame, send_frame
from specdecode_engine.grammar.compiler import TokenBytes
from specdecode_engine.grammar.source import GrammarRefused, GrammarSource
from specdecode_engine.grammar.trial import WALK_TOKENS, TrialLimits

log = logging.getLogger(__name__)

NICENESS = 10
"""Of the child process: next to an engine that needs all processors it gets a tenth of the time,
enough to start and to try a grammar within the limits."""
_PROGRAM = "import os; os.nice({}); from specdecode_engine.grammar.trial import serve; serve({})"
# One thread, and no arenas beyond the first: the address space is limited.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
_EXIT_SECONDS = 5.0
# Signals that a grammar causes: a stack overflow, and Rust's answer to a failed allocation.
_CRASHES = {-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT, -signal.SIGILL, -signal.SIGKILL}


class TrialUnavailable(Exception):
    """A grammar could not be tried, whatever it is; the message names the reason."""


class TrialProcess:
    """A child process that `start` or a grammar starts, and again whenever it has ended.

    Safe in any thread; it tries one grammar at a time.

    Args:
        tokens: the vocabulary.
        limits: what one grammar may take.
    """

    def __init__(self, tokens: TokenBytes, limits: TrialLimits) -> None:
        self._limits = limits
        self._start_frame = pickle.dumps((tokens, limits))
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The process id; None before the start and after the end."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process if none runs; raises `TrialUnavailable`."""
        with self._lock:
            self._ensure_running()

    def try_grammar(self, source: GrammarSource) -> str:
        """Return the grammar, translated, after it was compiled and followed.

        Raises:
            GrammarRefused: it is invalid, or exceeds a limit.
            TrialUnavailable: the process cannot be started, or was killed from outside.
        """
        with self._lock:
            answer = self._answer(source)
        if "refusal" in answer:
            raise GrammarRefused(answer["refusal"])
        return str(answer["translated"])

    def _answer(self, source: GrammarSource) -> dict[str, Any]:
        self._ensure_running()
        job = json.dumps([source.kind, source.text, source.is_strict]).encode()
        answer: dict[str, Any] = json.loads(self._exchange(job, self._limits.seconds))
        if answer.get("is_last"):
            self._end()
        return answer

    def _ensure_running(self) -> None:
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._start()

    def close(self) -> None:
        """End the process; a grammar that it is trying is given up."""
        self._is_closed = True
        if (process := self._process) is not None:
            process.kill()
        with self._lock:
            self._end()

    def _start(self) -> None:
        if self._is_closed:
            raise TrialUnavailable("the engine is stopping")
        own, other = socket.socketpair()
        try:
            # No function runs between fork and exec: other threads hold locks, and CUDA is loaded.
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM.format(NICENESS, other.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                env=os.environ | _ENVIRONMENT,
                # Signals of a terminal do not reach it. A session of its own would have the same
                # share of the processors as the engine's, whatever the niceness of its process.
                process_group=0,
            )
        except OSError as error:
            own.close()
            raise TrialUnavailable(
                f"the process that tries grammars cannot start: {error}"
            ) from None
        finally:
            other.close()
        self._channel = own
        self._exchange(self._start_frame, self._limits.start_seconds)
        log.info("process %d tries grammars", self._process.pid)

    def _exchange(self, frame: bytes, seconds: float) -> bytes:
        """Send a frame and return the answer to it."""
        assert self._channel is not None
        self._channel.settimeout(seconds)
        try:
            send_frame(self._channel, frame)
            answer = receive_frame(self._channel)
        except TimeoutError:
            assert self._process is not None
            self._process.kill()
            self._end()
            raise TrialUnavailable(f"the grammar was not tried within {seconds:g} s") from None
        except OSError:
            answer = None
        if answer is None:
            raise self._death()
        return answer

    def _death(self) -> Exception:
        """Return the error for a process that ended without an answer."""
        code = self._end()
        if code == -signal.SIGXCPU:
            return GrammarRefused(
                f"compiling it and following it for {WALK_TOKENS} tokens took more than "
                f"{self._limits.cpu_seconds} s of CPU time; simplify it"
            )
        if code in _CRASHES and not self._is_closed:
            return GrammarRefused(self._limits.too_large())
        return TrialUnavailable(f"the process that tries grammars ended with status {code}")

    def _end(self) -> int | None:
        """End the process if there is one; return its exit status."""
        process, self._process = self._process, None
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
        if process is None:
            return None
        try:
            return process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
