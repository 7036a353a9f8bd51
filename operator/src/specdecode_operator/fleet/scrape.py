"""Asks pods for their metrics, at the addresses that their status tells; a failure is told."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import httpx

from specdecode_api import names
from specdecode_operator.fleet import exposition
from specdecode_operator.fleet.reading import BadScrape, Reading, Scraped, reading_of
from specdecode_operator.kinds import Manifest

TIMEOUT_S = 5.0
AT_ONCE = 16
MAX_BYTES = 4 * 2**20


class Scraper:
    """Small requests to pods, a few at a time."""

    def __init__(self, client: httpx.AsyncClient, port: int = names.ENGINE_PORT) -> None:
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
        address = (pod.get("status") or {}).get("podIP")
        if not address:
            return "has no address yet"
        host = f"[{address}]" if ":" in address else address
        url = f"http://{host}:{self._port}{names.PATH_METRICS}"
        try:
            async with self._turns:
                text = await self._text(url)
            return reading_of(pod["metadata"]["uid"], exposition.read(text))
        except BadScrape as error:
            return str(error)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            return f"{url} does not answer: {str(error) or type(error).__name__}"

    async def _text(self, url: str) -> str:
        body = bytearray()
        head = {"accept": exposition.ACCEPT}
        async with (
            asyncio.timeout(TIMEOUT_S),
            self._client.stream("GET", url, headers=head) as answer,
        ):
            answer.raise_for_status()
            async for chunk in answer.aiter_bytes():
                body += chunk
                if len(body) > MAX_BYTES:
                    raise BadScrape(f"{url} tells more than {MAX_BYTES} bytes")
        return body.decode(errors="replace")


@asynccontextmanager
async def open_scraper(port: int = names.ENGINE_PORT) -> AsyncIterator[Scraper]:
    """Open connections of their own: no proxies, no redirects."""
    async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as client:
        yield Scraper(client, port)
