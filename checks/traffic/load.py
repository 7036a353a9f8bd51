"""Steady traffic on its own thread: each client sends, compares, waits a moment, sends again."""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import httpx

from checks.traffic.asking import NoAnswer, ask, asking
from checks.traffic.questions import ALL_QUESTIONS, LONG_QUESTIONS, QUESTIONS, Question
from checks.traffic.tally import Tally

PAUSE_S = 0.3
RETRIES = 6  # after a kill; 0.25 s and twice as long each time, 16 s in all


@dataclass(frozen=True, slots=True)
class Client:
    """How one client sends requests."""

    number: int
    is_stream: bool
    keeps_connections: bool
    questions: tuple[Question, ...] = QUESTIONS
    """What it sends, in turn; a kept connection leads all of it to one pod."""


CLIENTS = tuple(
    Client(number, is_stream, keeps)
    for number, (is_stream, keeps) in enumerate(
        itertools.product((True, False), (True, True, False))
    )
)

MIXED_CLIENTS = tuple(replace(client, questions=ALL_QUESTIONS) for client in CLIENTS)
LONG_CLIENTS = tuple(
    Client(number, is_stream=True, keeps_connections=bool(number % 2), questions=LONG_QUESTIONS)
    for number in range(6)
)


def plain_texts(
    url: str, model: str, questions: Iterable[Question] = ALL_QUESTIONS
) -> dict[Question, str]:
    """Ask every question once, one after the other."""

    async def run() -> dict[Question, str]:
        async with asking(url, keeps_connections=True) as client:
            return {question: await ask(client, model, question, False) for question in questions}

    return asyncio.run(run())


class Load:
    """Traffic through a Service until it is stopped.

    Args:
        url: of the Service, with `/v1`.
        texts: what every question is answered without speculation.
        is_on: whether requests are sent, given the seconds since the start.
    """

    def __init__(
        self,
        url: str,
        model: str,
        texts: Mapping[Question, str],
        clients: Sequence[Client] = CLIENTS,
        is_on: Callable[[float], bool] = lambda _: True,
    ) -> None:
        self._url = url
        self._model = model
        self._texts = texts
        self._clients = clients
        self._is_on = is_on
        self._is_paused = False
        self._lock = threading.Lock()
        self._tally = Tally()
        self._may_be_cut = False
        self._is_over = False
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over = True
        self._thread.join()

    def more(
        self, clients: Sequence[Client], is_on: Callable[[float], bool] = lambda _: True
    ) -> "Load":
        """Further traffic through the same Service, with counts of its own."""
        return Load(self._url, self._model, self._texts, clients, is_on)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Send no new requests meanwhile."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def begin(self) -> None:
        """Reset the counts, and count every broken request as a failure."""
        with self._lock:
            self._tally = Tally()
            self._may_be_cut = False

    def allow_cuts(self) -> None:
        """A process is about to be killed: what was in it may be asked again."""
        self._may_be_cut = True

    @property
    def tally(self) -> Tally:
        """What was counted since `begin`."""
        with self._lock:
            return self._tally

    def wait_answers(self, count: int, seconds: float) -> None:
        """Wait until so many more requests have ended; traffic that stands still is a failure."""
        tally, deadline = self.tally, time.monotonic() + seconds
        wanted = tally.sent + count
        while tally.sent < wanted:
            if time.monotonic() > deadline:
                tally.fail(f"fewer than {count} requests ended within {seconds:.0f} s")
                return
            time.sleep(0.05)

    async def _run(self) -> None:
        started_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for client in self._clients:
                group.create_task(self._ask_on(client, started_s))

    async def _ask_on(self, client: Client, started_s: float) -> None:
        questions = client.questions
        async with asking(self._url, keeps_connections=client.keeps_connections) as connection:
            for number in itertools.count(client.number):
                while not self._is_over and not self._sends(time.monotonic() - started_s):
                    await asyncio.sleep(PAUSE_S)
                if self._is_over:
                    return
                await self._ask(connection, client, questions[number % len(questions)])
                await asyncio.sleep(PAUSE_S)

    def _sends(self, at_s: float) -> bool:
        return not self._is_paused and self._is_on(at_s)

    async def _ask(self, connection: httpx.AsyncClient, client: Client, question: Question) -> None:
        started = time.monotonic()
        for attempt in range(RETRIES + 1):
            try:
                text = await ask(connection, self._model, question, client.is_stream)
            except NoAnswer as reason:
                if self._gives_up(attempt, reason):
                    return
                await asyncio.sleep(0.25 * 2**attempt)
                continue
            with self._lock:
                self._tally.answer(
                    time.monotonic() - started,
                    is_stream=client.is_stream,
                    is_right=text == self._texts[question],
                    form=(question.form.name, client.is_stream),
                )
            return

    def _gives_up(self, attempt: int, reason: NoAnswer) -> bool:
        """Count an attempt without an answer; return whether the request has failed with it."""
        with self._lock:
            if self._may_be_cut and attempt < RETRIES:
                self._tally.cut_by_kill += 1
                return False
            self._tally.fail(str(reason))
            return True
