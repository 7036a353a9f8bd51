"""Requests to engines: which draft they use, and to exchange it. Keeps their latest answers.

Level-triggered: an engine is asked as long as it does not use the wanted draft, after a restart of
the operator too. Requests run in tasks of their own, so that reading a draft delays no reconcile.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from specdecode_api.report import DraftInUse
from specdecode_operator.engines.engine_client import EngineClient
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.objects.observed import DraftAnswer, Key
from specdecode_operator.updates.draft_exchange import UNDER_WAY, PodState, WantedDraft

log = logging.getLogger(__name__)

PERIOD_S = 2.0
"""Between two requests to an engine that is still to exchange its draft. The time doubles with each
request that fails, up to `RETRY_S`: an engine of an older release never answers."""
RETRY_S = 60.0
"""Between two attempts of an engine that refuses the draft: its files may have been repaired."""
CONCURRENT_REQUESTS = 8


@dataclass(slots=True)
class _Known:
    """The latest answer of one engine."""

    report: DraftInUse | None = None
    error: str = ""
    asked: str = ""
    asked_s: float = 0.0
    tried_s: float = 0.0  # when it was asked last to exchange its draft
    failures: int = 0  # requests in a row
    failed_s: float = 0.0  # the last of them

    def left_s(self, wanted: WantedDraft, now_s: float) -> float | None:
        """Seconds until it is to be asked; None: it uses the draft, or never can."""
        state = wanted.state(DraftAnswer(self.report))
        if state in UNDER_WAY:
            return self._pause_left_s(wanted, now_s)
        return max(self.tried_s + RETRY_S - now_s, 0.0) if state is PodState.REFUSED else None

    def note(self, report: DraftInUse | None, error: str, now_s: float) -> None:
        """Keep an answer, or why there is none."""
        self.report, self.error = report, error
        self.failures, self.failed_s = (self.failures + 1 if error else 0), now_s

    def _pause_left_s(self, wanted: WantedDraft, now_s: float) -> float:
        """Seconds until the next request after those that failed; none where the draft is new."""
        if self.failures < 2 or self.asked != wanted.config_hash:
            return 0.0
        pause_s = min(PERIOD_S * 2.0 ** (self.failures - 1), RETRY_S)
        return max(self.failed_s + pause_s - now_s, 0.0)


@dataclass(slots=True)
class _Engines:
    """What is known of the engines of one resource."""

    pods: dict[str, _Known] = field(default_factory=dict)
    """By uid."""
    task: asyncio.Task[None] | None = None
    began_s: float = -PERIOD_S


class DraftRequests:
    """Exchanges drafts in the engines of all resources. Part of the event loop.

    Args:
        clock: monotonic, in seconds.
        wake: called with the key of a resource when an engine has answered something new.
    """

    def __init__(
        self, engines: EngineClient, clock: Callable[[], float], wake: Callable[[Key], None]
    ) -> None:
        self._engines = engines
        self._clock = clock
        self._wake = wake
        self._by_key: dict[Key, _Engines] = {}
        self._gate = asyncio.Semaphore(CONCURRENT_REQUESTS)

    def answers(self, key: Key) -> Mapping[str, DraftAnswer]:
        """The latest answers of the engines of a resource, by uid of the pod."""
        engines, now_s = self._by_key.get(key), self._clock()
        if engines is None:
            return {}
        return {
            uid: DraftAnswer(one.report, one.error, one.asked, now_s - one.asked_s)
            for uid, one in engines.pods.items()
        }

    def ask(
        self, key: Key, owner: str, found: Iterable[Manifest], wanted: WantedDraft
    ) -> float | None:
        """Ask the engines that do not use the wanted draft; return the seconds until the next time.

        Args:
            owner: uid of the resource.
            found: the pods that should use it.
        """
        engines = self._by_key.setdefault(key, _Engines(began_s=self._clock() - PERIOD_S))
        by_uid = {str(pod["metadata"]["uid"]): pod for pod in found}
        engines.pods = {uid: engines.pods.get(uid) or _Known() for uid in by_uid}
        now_s = self._clock()
        lefts_s = {uid: engines.pods[uid].left_s(wanted, now_s) for uid in by_uid}
        waits_s = [left_s for left_s in lefts_s.values() if left_s is not None]
        if not waits_s:
            return None
        left_s = max(engines.began_s + PERIOD_S - now_s, min(waits_s))
        if engines.task is None and left_s <= 0:
            due = {uid: pod for uid, pod in by_uid.items() if lefts_s[uid] == 0}
            engines.began_s = now_s
            engines.task = asyncio.create_task(self._ask_all(key, engines, owner, due, wanted))
        return max(left_s, PERIOD_S) if engines.task is not None else left_s

    def forget(self, key: Key) -> None:
        """Drop everything about a resource."""
        engines = self._by_key.pop(key, None)
        if engines is not None and engines.task is not None:
            engines.task.cancel()

    def stop(self) -> None:
        """Drop everything about all resources."""
        for key in [*self._by_key]:
            self.forget(key)

    async def complete(self, key: Key) -> None:
        """Wait for the requests that are under way, if any."""
        engines = self._by_key.get(key)
        if engines is not None and engines.task is not None:
            await asyncio.wait([engines.task])

    async def _ask_all(
        self,
        key: Key,
        engines: _Engines,
        owner: str,
        due: Mapping[str, Manifest],
        wanted: WantedDraft,
    ) -> None:
        asked = [(pod, engines.pods[uid]) for uid, pod in due.items()]
        before = [(known.report, known.error) for _, known in asked]
        try:
            await asyncio.gather(*(self._ask(pod, known, owner, wanted) for pod, known in asked))
        except Exception:  # asked again after the period
            log.exception("engines not asked", extra={"resource": f"{key.namespace}/{key.name}"})
        finally:
            engines.task = None
        if [(known.report, known.error) for _, known in asked] != before:
            self._wake(key)

    async def _ask(self, pod: Manifest, known: _Known, owner: str, wanted: WantedDraft) -> None:
        """Ask one engine what it uses, and to exchange that where it is not under way."""
        async with self._gate:
            if known.asked != wanted.config_hash:
                known.asked, known.asked_s = wanted.config_hash, self._clock()
            report, error = await self._engines.draft(pod), ""
            if report is None:
                error = "does not answer"
            elif wanted.state(DraftAnswer(report)) in (PodState.WAITING, PodState.REFUSED):
                known.tried_s = self._clock()
                answer = await self._engines.put_draft(pod, owner, wanted.path, wanted.config_hash)
                if isinstance(answer, DraftInUse):
                    report = answer
                else:
                    report, error = await self._engines.draft(pod), answer
            known.note(report, error, self._clock())
