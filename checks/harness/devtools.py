"""A headless Chromium, driven by the Chrome DevTools Protocol."""

import asyncio
import base64
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

START_TIMEOUT_S = 60
TIMEOUT_S = 60


class Tab:
    """One tab; `messages` are those of its console, errors of the page included."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self.messages: list[str] = []
        self._events: list[str] = []

    async def call(self, method: str, timeout_s: float = TIMEOUT_S, **parameters: Any) -> Any:
        """Call a method of the protocol; returns its result."""
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        async with asyncio.timeout(timeout_s):
            while True:
                answer = await self._socket.receive_json()
                if answer.get("id") == self._number:
                    assert "error" not in answer, answer
                    return answer["result"]
                self._note(answer)

    async def open(self, url: str) -> None:
        """Load a page."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        self._events.clear()
        await self.call("Page.navigate", url=url)
        async with asyncio.timeout(TIMEOUT_S):
            while "Page.loadEventFired" not in self._events:
                self._note(await self._socket.receive_json())

    async def look(
        self, width: int, height: int = 844, *, scheme: str = "light", medium: str = "screen"
    ) -> None:
        """Emulate a screen, a color scheme and a medium."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 500,
        )  # fmt: skip
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", media=medium, features=features)

    async def value(self, expression: str, timeout_s: float = TIMEOUT_S) -> Any:
        """The value of a JavaScript expression on the page; of a promise, its result."""
        found = await self.call(
            "Runtime.evaluate", timeout_s,
            expression=expression, returnByValue=True, awaitPromise=True,
        )  # fmt: skip
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def wait(self, expression: str, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until a JavaScript expression is true."""
        async with asyncio.timeout(timeout_s):
            while not await self.value(expression):
                await asyncio.sleep(0.05)  # a poll of another process

    async def screenshot(self) -> bytes:
        """The whole page as PNG."""
        found = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(found["data"])

    async def pdf(self) -> bytes:
        """The page as it is printed on A4."""
        found = await self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)
        return base64.b64decode(found["data"])

    @property
    def requests(self) -> list[str]:
        """Requests for anything besides the page."""
        return [each for each in self._events if each.startswith("request ")][1:]

    def _note(self, event: dict[str, Any]) -> None:
        method, parameters = event.get("method", ""), event.get("params", {})
        self._events.append(method)
        if method == "Network.requestWillBeSent":
            self._events.append(f"request {parameters['request']['url']}")
        if method in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
            self.messages.append(str(parameters))


@asynccontextmanager
async def browse(program: str, folder: Path) -> AsyncIterator[Tab]:
    """Start a browser with a profile in `folder`, and open a tab."""
    words = [
        program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--no-first-run", "--hide-scrollbars", "--remote-debugging-port=0",
        f"--user-data-dir={folder}", "about:blank",
    ]  # fmt: skip
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)
    try:
        address = await _address(process, folder)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://{address}/json/list") as response:
                pages = [each for each in await response.json() if each["type"] == "page"]
            url = pages[0]["webSocketDebuggerUrl"]
            async with session.ws_connect(url, max_msg_size=0) as socket:
                yield Tab(socket)
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 30)


async def _address(process: subprocess.Popen[bytes], folder: Path) -> str:
    """Where the browser listens; it writes the port into its profile."""
    file = folder / "DevToolsActivePort"
    async with asyncio.timeout(START_TIMEOUT_S):
        while not file.exists() or not (lines := file.read_text().splitlines()):
            assert process.poll() is None, (folder / "log").read_text()
            await asyncio.sleep(0.1)  # a poll of a process that starts
    return f"127.0.0.1:{lines[0]}"
