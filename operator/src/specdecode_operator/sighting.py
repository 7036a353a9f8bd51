"""Looks at the engines of a resource: reads their metrics, and gives them the tables of a trial.

Level-triggered: what a pod should run is compared with what it says it runs, so a pod that was
started anew gets its table again. Asked at any time, it looks only as often as it has to.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus

import httpx

from specdecode_api import names
from specdecode_api.series import table_hash
from specdecode_api.speculation import Policy
from specdecode_api.table import TableEntry
from specdecode_operator import pods as reading_pods
from specdecode_operator.asking import url_of
from specdecode_operator.fleet import Reading
from specdecode_operator.fleet.scrape import TIMEOUT_S, Scraper
from specdecode_operator.kinds import Manifest
from specdecode_operator.observed import Key
from specdecode_operator.trial.sight import Sight

MAX_PODS = 64
SLACK_S = 0.25
"""A look that is due this soon is made at once."""

Tables = Mapping[str, Mapping[str, TableEntry]]


class Lookout:
    """Looks at pods. Owns when each resource was looked at last, which may be lost."""

    def __init__(
        self, client: httpx.AsyncClient, clock: Callable[[], float], port: int = names.ENGINE_PORT
    ) -> None:
        self._client = client
        self._scrape = Scraper(client, port)
        self._clock = clock
        self._port = port
        self._latest: dict[Key, float] = {}

    def due_s(self, key: Key, every_s: float) -> float:
        """Seconds until a resource has to be looked at again; 0 when now."""
        latest = self._latest.get(key)
        rest_s = 0.0 if latest is None else latest + every_s - self._clock()
        return 0.0 if rest_s < SLACK_S else rest_s

    def forget(self, key: Key) -> None:
        """A resource is gone, or nobody needs to know any more."""
        self._latest.pop(key, None)

    async def look(
        self,
        key: Key,
        owner: str,
        pods: Sequence[Manifest],
        tables: Tables,
        now_s: Callable[[], float],
    ) -> Sight:
        """Read the pods that serve, and give those another table that should have one.

        Args:
            owner: uid of the resource, which lets engines with API keys take a table from us.
            tables: by the uid of a pod, what it must run.
            now_s: seconds since 1970.
        """
        self._latest[key] = self._clock()
        serving = [pod for pod in pods if reading_pods.is_ready(pod)][:MAX_PODS]
        scraped = await self._scrape(serving)
        readings = {each.pod_uid: each for each in scraped.readings}
        failures = dict(scraped.failures)
        wrong = [pod for pod in serving if _is_wrong(readings.get(_uid(pod)), tables)]
        if not wrong:
            return Sight(now_s(), readings, failures)
        answers = await asyncio.gather(*(self._put(pod, owner, tables[_uid(pod)]) for pod in wrong))
        refusals: dict[str, str] = {}
        for pod, (needs_restart, fault) in zip(wrong, answers, strict=True):
            if fault:
                (refusals if needs_restart else failures)[pod["metadata"]["name"]] = fault
        again = await self._scrape(wrong)
        readings |= {each.pod_uid: each for each in again.readings}
        return Sight(now_s(), readings, failures, refusals)

    async def _put(
        self, pod: Manifest, owner: str, table: Mapping[str, TableEntry]
    ) -> tuple[bool, str]:
        """Exchange the table of a pod: whether it would need a restart, and what is wrong."""
        url = url_of(pod, self._port, names.PATH_TABLE)
        assert url is not None, "its metrics were read there"
        document = {bound: entry.model_dump(mode="json") for bound, entry in table.items()}
        try:
            answer = await self._client.put(
                url, json=document, headers={names.HEADER_OWNER: owner}, timeout=TIMEOUT_S
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return False, f"{url} does not answer: {str(error) or type(error).__name__}"
        if answer.is_success:
            return False, ""
        return answer.status_code == HTTPStatus.CONFLICT, f"{url}: {_said(answer)}"


def _said(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])[:500]
    except (ValueError, KeyError, TypeError):
        return f"answers {answer.status_code}"


def _is_wrong(reading: Reading | None, tables: Tables) -> bool:
    """Whether a pod runs another table than it should."""
    if reading is None or reading.pod_uid not in tables:
        return False
    wanted = table_hash(Policy(reading.facts["policy"]), tables[reading.pod_uid])
    return reading.key.table_hash != wanted


def _uid(pod: Manifest) -> str:
    return str(pod["metadata"]["uid"])


@asynccontextmanager
async def open_lookout(
    clock: Callable[[], float], port: int = names.ENGINE_PORT
) -> AsyncIterator[Lookout]:
    """Open connections of their own: no proxies, no redirects."""
    async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as client:
        yield Lookout(client, clock, port)
