"""Asks pods for their metrics, at the addresses that their status tells; a failure is told."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import httpx

from specdecode_api import names
from specdecode_operator.engine_http import ResponseTooLong, read_response, url_of
from specdecode_operator.fleet import exposition
from specdecode_operator.fleet.reading import BadScrape, Reading, Scraped, reading_of
from specdecode_operator.kinds import Manifest

TIMEOUT_S = 5.0
AT_ONCE = 16
MAX_BYTES = 4 * 2**20

_HEADERS = {"accept": exposition.ACCEPT}


class Scraper:
    """Small requests to pods, a few at a time."""

    def __init__(self, client: httpx.AsyncClient, port: int = names.MANAGEMENT_PORT) -> None:
        self._client = client
        self._port = port
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def __call__(self, pods: Sequence[Manifest]) -> Scraped:
        """Read all pods; one that does not answer in full hides no other."""
        answers = await asyncio.gather(*(self._read(pod) for pod in pods))
        told = list(zip(pods, answers, strict=True))
        return Scraped(
            tuple(each for _, each in told if isinstance(each, Reading)),
            {pod["metadata"]["name"]: each for pod, each in told if isinstance(each, str)},
        )

    async def _read(self, pod: Manifest) -> Reading | str:
        url = url_of(pod, self._port, names.PATH_METRICS)
        if url is None:
            return "has no address yet"
        try:
            async with self._turns:
                body = await read_response(self._client, url, MAX_BYTES, TIMEOUT_S, _HEADERS)
            text = body.decode(errors="replace")
            return reading_of(pod["metadata"]["uid"], exposition.read(text))
        except (BadScrape, ResponseTooLong) as error:
            return str(error)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            return f"{url} does not answer: {str(error) or type(error).__name__}"


@asynccontextmanager
async def open_scraper(port: int = names.MANAGEMENT_PORT) -> AsyncIterator[Scraper]:
    """Open connections of their own: no proxies, no redirects."""
    async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as client:
        yield Scraper(client, port)
