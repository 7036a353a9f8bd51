"""Watches the cluster all the time, and records how long the status was wrong."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from checks.traffic.reading import Reader, reading
from checks.traffic.seen import Seen
from checks.traffic.truth import is_settled, strays, untruths
from demo.console import DemoFailed

LOOK_S = 0.4


@dataclass(slots=True)
class Findings:
    """What was seen during one event; owned by the witness."""

    untrue: dict[str, float] = field(default_factory=dict)
    """Sentences, each with the longest time in seconds for which it stayed true."""
    strays: dict[str, float] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    """Reasons of the condition Ready, in the order in which they came."""
    fewest_ready: int | None = None
    may_be_without: bool = False
    """Whether the event leaves no engine ready, on purpose."""
    looks: int = 0


class Witness:
    """Reads everything about one resource over and over, on a thread of its own."""

    def __init__(self, name: str, engine_image: str) -> None:
        self._name = name
        self._engine_image = engine_image
        self._findings = Findings()
        self._since: dict[str, float] = {}
        self._is_blind = False
        self._is_over = threading.Event()
        self._looked = threading.Condition()
        self._latest: Seen | None = None
        self._from_s = 0.0  # looks that began before this prove nothing
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Witness":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()

    @property
    def findings(self) -> Findings:
        """What was found since `begin`."""
        return self._findings

    def begin(self) -> None:
        """Clear the findings."""
        with self._looked:
            self._findings = Findings()
            self._since = {}

    @contextmanager
    def blind(self) -> Iterator[None]:
        """Ignore a wrong status while the operator or the API server is away."""
        self._is_blind = True
        try:
            yield
        finally:
            with self._looked:
                self._is_blind = False
                self._since = {}

    def wait(self, what: str, is_so: Callable[[Seen], bool], seconds: float) -> Seen:
        """Wait for a look from now on that shows something.

        Raises:
            DemoFailed: the time is over; the message has what was seen last.
        """
        deadline = time.monotonic() + seconds
        with self._looked:
            self._latest, self._from_s = None, time.monotonic()
            while self._latest is None or not is_so(self._latest):
                if not self._looked.wait(max(0.0, deadline - time.monotonic())):
                    raise DemoFailed(f"no {what} after {seconds:.0f} s: {self._last_story()}")
            return self._latest

    def wait_settled(self, seconds: float) -> None:
        """Wait until the resource has come to rest."""
        self.wait("rest", lambda seen: is_settled(seen, self._engine_image), seconds)

    def _last_story(self) -> str:
        seen = self._latest
        if seen is None:
            return "the API server has not answered"
        ready = seen.condition("Ready")
        reported = [f"Ready {ready.get('status')}, {ready.get('reason')}: {ready.get('message')}"]
        reported += [
            f"{len(seen.pods)} pods, {len(seen.ready_pods)} ready, {seen.routable} routable"
        ]
        return "; ".join(
            [*reported, *untruths(seen, self._engine_image), *strays(seen, self._engine_image)]
        )

    def _run(self) -> None:
        with reading() as reader:
            while not self._is_over.wait(LOOK_S):
                self._look(reader)

    def _look(self, reader: Reader) -> None:
        began_s = time.monotonic()
        try:
            seen = reader.see(self._name)
        except httpx.HTTPError:
            with self._looked:
                self._since = {}
            return
        with self._looked:
            self._note(seen, time.monotonic())
            if began_s > self._from_s:
                self._latest = seen
                self._looked.notify_all()

    def _note(self, seen: Seen, now_s: float) -> None:
        findings = self._findings
        findings.looks += 1
        ready = len(seen.ready_pods)
        fewest = findings.fewest_ready
        findings.fewest_ready = ready if fewest is None else min(fewest, ready)
        reason = seen.condition("Ready").get("reason")
        if reason and reason not in findings.reasons[-1:]:
            findings.reasons.append(reason)
        if self._is_blind:
            return
        untrue, stray = untruths(seen, self._engine_image), strays(seen, self._engine_image)
        self._since = {text: self._since.get(text, now_s) for text in (*untrue, *stray)}
        _lengthen(findings.untrue, untrue, self._since, now_s)
        _lengthen(findings.strays, stray, self._since, now_s)


def _lengthen(
    longest: dict[str, float], texts: Iterable[str], since: dict[str, float], now_s: float
) -> None:
    for text in texts:
        longest[text] = max(longest.get(text, 0.0), now_s - since[text])
