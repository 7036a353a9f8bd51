"""Reads the same from a Prometheus server that scrapes the pods already."""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from specdecode_api import metrics
from specdecode_operator.fleet.reading import BadScrape, Reading, Sample, Scraped, reading_of

TIMEOUT_S = 20.0
MAX_BYTES = 64 * 2**20

READ = (
    *metrics.IDENTITY, *metrics.BUCKETS, *metrics.REQUEST_SUMS, *metrics.LATENCIES[:2],
    metrics.REQUESTS, metrics.HTTP_ERRORS, metrics.PREEMPTED_REQUESTS,
)  # fmt: skip
SAMPLES = sorted(
    (*(each.sample for each in READ), *(f"{each.family}_sum" for each in metrics.LATENCIES[:2]))
)


class PrometheusReader:
    """One instant query for all pods of a resource; pods go by their names, which come once."""

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self._client = client
        self._url = url.rstrip("/") + "/api/v1/query"

    async def __call__(self, namespace: str, deployment: str) -> Scraped:
        """Read all pods that the server knows; `failures` goes by the name of the pod.

        Raises:
            BadScrape: the server does not answer, or refuses; the message is its own.
        """
        by_pod: dict[str, list[Sample]] = defaultdict(list)
        for pod, sample in _samples(await self._ask(query(namespace, deployment))):
            by_pod[pod].append(sample)
        readings: list[Reading] = []
        failures: dict[str, str] = {}
        for pod, samples in by_pod.items():
            try:
                readings.append(reading_of(pod, samples))
            except BadScrape as error:
                failures[pod] = str(error)
        return Scraped(tuple(readings), failures)

    async def _ask(self, text: str) -> Any:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                body = await self._body(text)
            return json.loads(body)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ValueError) as error:
            said = str(error) or type(error).__name__
            raise BadScrape(f"{self._url} gives no answer: {said}") from error

    async def _body(self, text: str) -> bytes:
        body = bytearray()
        async with self._client.stream("POST", self._url, data={"query": text}) as answer:
            async for chunk in answer.aiter_bytes():
                body += chunk
                if len(body) > MAX_BYTES:
                    raise ValueError(f"more than {MAX_BYTES} bytes")
        return bytes(body)


def query(namespace: str, deployment: str) -> str:
    """The one query: one moment for every series, so that none is of another scrape."""
    wanted = "|".join(SAMPLES)
    place = f"namespace={json.dumps(namespace)},deployment={json.dumps(deployment)}"
    return f"{{__name__=~{json.dumps(wanted)},{place}}}"


def _samples(answer: Any) -> list[tuple[str, Sample]]:
    try:
        if answer["status"] != "success":
            raise ValueError(f"{answer.get('errorType')}: {answer.get('error')}")
        return [_sample(each["metric"], each["value"]) for each in answer["data"]["result"]]
    except (KeyError, TypeError, ValueError) as error:
        raise BadScrape(f"Prometheus refuses the query: {error}") from error


def _sample(metric: Mapping[str, str], value: tuple[float, str]) -> tuple[str, Sample]:
    return metric["pod"], Sample(metric["__name__"], metric, float(value[1]))


@asynccontextmanager
async def open_prometheus(url: str) -> AsyncIterator[PrometheusReader]:
    """Open a connection to the server at `url`; no proxies, no redirects."""
    async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as client:
        yield PrometheusReader(client, url)
