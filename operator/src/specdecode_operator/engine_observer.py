"""Reads the metrics of a resource's engines, and sends them the tables of a trial.

Level-triggered: the table that a pod should run is compared with the table that it reports, so a
restarted pod receives its table again. Each resource is observed at the interval of its phase.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from specdecode_api.metrics import table_hash
from specdecode_api.speculation import Policy
from specdecode_api.table import TableEntry
from specdecode_operator import pods as reading_pods
from specdecode_operator.engine_client import EngineClient
from specdecode_operator.fleet import Reading
from specdecode_operator.kinds import Manifest
from specdecode_operator.observed import Key
from specdecode_operator.trial.sight import Sight

MAX_PODS = 64
SLACK_S = 0.25
"""An observation that is due within this time is made now."""

Tables = Mapping[str, Mapping[str, TableEntry]]


class EngineObserver:
    """Observes engines. Owns the time of the latest observation of each resource (in memory)."""

    def __init__(self, engines: EngineClient, clock: Callable[[], float]) -> None:
        self._engines = engines
        self._clock = clock
        self._latest: dict[Key, float] = {}

    def due_s(self, key: Key, every_s: float) -> float:
        """Seconds until the next observation of a resource; 0 if it is due now."""
        latest = self._latest.get(key)
        rest_s = 0.0 if latest is None else latest + every_s - self._clock()
        return 0.0 if rest_s < SLACK_S else rest_s

    def forget(self, key: Key) -> None:
        """Drop the time of the latest observation, so that the next one is due at once."""
        self._latest.pop(key, None)

    async def observe(
        self,
        key: Key,
        owner: str,
        pods: Sequence[Manifest],
        tables: Tables,
        now_s: Callable[[], float],
    ) -> Sight:
        """Read the serving pods, and send a table to each pod that runs a wrong one.

        Args:
            owner: uid of the resource; engines with API keys accept a table with this owner.
            tables: the required table by uid of the pod.
            now_s: seconds since 1970.
        """
        self._latest[key] = self._clock()
        serving = [pod for pod in pods if reading_pods.is_ready(pod)][:MAX_PODS]
        scraped = await self._engines.scrape(serving)
        readings = {each.pod_uid: each for each in scraped.readings}
        failures = dict(scraped.failures)
        wrong = [pod for pod in serving if _is_wrong(readings.get(_uid(pod)), tables)]
        if not wrong:
            return Sight(now_s(), readings, failures)
        results = await asyncio.gather(
            *(self._engines.put_table(pod, owner, tables[_uid(pod)]) for pod in wrong)
        )
        refusals: dict[str, str] = {}
        for pod, (needs_restart, error) in zip(wrong, results, strict=True):
            if error:
                (refusals if needs_restart else failures)[pod["metadata"]["name"]] = error
        again = await self._engines.scrape(wrong)
        readings |= {each.pod_uid: each for each in again.readings}
        return Sight(now_s(), readings, failures, refusals)


def _is_wrong(reading: Reading | None, tables: Tables) -> bool:
    """Whether a pod runs a table other than the required one."""
    if reading is None or reading.pod_uid not in tables:
        return False
    wanted = table_hash(Policy(reading.facts["policy"]), tables[reading.pod_uid])
    return reading.key.table_hash != wanted


def _uid(pod: Manifest) -> str:
    return str(pod["metadata"]["uid"])
