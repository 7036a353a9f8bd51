"""The other ranks of a divided engine: each executes the leader's commands on a core of its own."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import NamedTuple

from specdecode_engine.adaptive.policy import TableRefused
from specdecode_engine.adaptive.table import RangeTable
from specdecode_engine.batch.request import Output, Request, RequestRefused
from specdecode_engine.grammar import GrammarCompiler, TokenBytes
from specdecode_engine.serve.engine.compile_threads import CompileThreads, compile_grammar
from specdecode_engine.serve.engine.core import Core
from specdecode_engine.stats.snapshot import CoreSnapshot

MAX_GRAMMARS = 256
"""Compiled grammars that a follower keeps: more than requests that a leader compiles at a time."""


class CoreCall(NamedTuple):
    """A call of one of the core's methods."""

    method: str
    arguments: tuple[object, ...] = ()


class Prepare(NamedTuple):
    """Prepare the vocabulary for grammars."""

    tokens: TokenBytes


class Compile(NamedTuple):
    """Begin to compile the grammars of requests: the leader does, and submits them afterwards."""

    requests: tuple[Request, ...]


FollowerCommand = CoreCall | Prepare | Compile


class Followers:
    """The leader's links to the other ranks. Used by the engine thread alone."""

    def __init__(self, links: Sequence[Connection]) -> None:
        self._links = links

    def send(self, command: FollowerCommand) -> None:
        """Have a command executed by every follower, after those before it."""
        data = pickle.dumps(command)
        for link in self._links:
            link.send_bytes(data)


class LeadingCore:
    """The leader's core: whatever changes it is executed by the followers too."""

    def __init__(self, core: Core, followers: Followers) -> None:
        self._core = core
        self.followers = followers

    @property
    def context_length(self) -> int:
        return self._core.context_length

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return self._core.eos_token_ids

    @property
    def latest_step(self) -> str:
        return self._core.latest_step

    def submit(self, request: Request) -> None:
        self.followers.send(CoreCall("submit", (replace(request, grammar=None),)))
        self._core.submit(request)

    def resume(self, request: Request) -> None:
        self.followers.send(CoreCall("resume", (replace(request, grammar=None),)))
        self._core.resume(request)

    def abort(self, request_id: str) -> None:
        self.followers.send(CoreCall("abort", (request_id,)))
        self._core.abort(request_id)

    def step(self) -> list[Output]:
        self.followers.send(CoreCall("step"))
        return self._core.step()

    def has_work(self) -> bool:
        return self._core.has_work()

    def idle_step(self) -> bool:
        self.followers.send(CoreCall("idle_step"))
        return self._core.idle_step()

    def reload(self, table: RangeTable) -> None:
        self.followers.send(CoreCall("reload", (table,)))
        self._core.reload(table)

    def snapshot(self) -> CoreSnapshot:
        return self._core.snapshot()


def follow(core: Core, link: Connection, grammar_threads: CompileThreads) -> None:
    """Execute the leader's commands until it closes the link, or is gone."""
    grammars = _Grammars(grammar_threads)
    with suppress(EOFError):
        while True:
            command: FollowerCommand = pickle.loads(link.recv_bytes())
            match command:
                case Prepare(tokens):
                    grammars.prepare(tokens)
                case Compile(requests):
                    grammars.begin(requests)
                case CoreCall("submit", (Request() as request,)):
                    with suppress(RequestRefused):  # by the leader's core too
                        core.submit(grammars.complete(request))
                case CoreCall("resume", (Request() as request,)):
                    core.resume(grammars.complete(request))
                case CoreCall(method, arguments):
                    with suppress(TableRefused):
                        getattr(core, method)(*arguments)


class _Grammars:
    """The grammars of requests, compiled in other threads while the leader compiles them."""

    def __init__(self, threads: CompileThreads) -> None:
        self._threads = threads
        self._compiler: GrammarCompiler | None = None
        self._compiled: OrderedDict[str, Future[Request]] = OrderedDict()

    def prepare(self, tokens: TokenBytes) -> None:
        self._compiler = GrammarCompiler(tokens)

    def begin(self, requests: tuple[Request, ...]) -> None:
        for request in requests:
            self._compiled[request.request_id] = self._compile(request)
            if len(self._compiled) > MAX_GRAMMARS:
                self._compiled.popitem(last=False)

    def complete(self, request: Request) -> Request:
        """Return the request with its grammar, once that is compiled."""
        if request.translated_grammar is None:
            return request
        compiled = self._compiled.pop(request.request_id, None) or self._compile(request)
        return replace(request, grammar=compiled.result().grammar)

    def _compile(self, request: Request) -> Future[Request]:
        assert self._compiler is not None, "the vocabulary was not prepared"
        is_continued = bool(request.output_ids)
        return self._threads.submit(is_continued, compile_grammar, request, self._compiler)
