"""The draft in use, and its exchange while the engine serves."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from specdecode_api.boot import EngineBoot
from specdecode_engine.adaptive.policy import DraftRefused
from specdecode_engine.serve.engine.core import EngineFailed

log = logging.getLogger(__name__)

AT_START = "boot file or flags"


class Drafts:
    """Exchanges drafts, one at a time; a refused draft leaves the old one in use.

    Owned by the event loop.

    Args:
        boot: the configuration at start.
        exchange: copies the draft in a folder over the running one, or raises `DraftRefused`.
        count: called once per attempt with "applied" or "refused".
    """

    def __init__(
        self,
        boot: EngineBoot,
        exchange: Callable[[Path], Awaitable[None]],
        count: Callable[[str], None],
    ) -> None:
        self._algorithm = boot.speculation.algorithm
        self._exchange = exchange
        self._count = count
        self._changing = asyncio.Lock()
        self._tasks: set[asyncio.Task[Exception | None]] = set()
        self._source = AT_START
        self._changing_to: str | None = None
        self._refused_path: str | None = None
        self._needs_restart = False
        self._path_at_start, self._hash_at_start = boot.speculation.draft_path, boot.config_hash
        self.path, self.config_hash = self._path_at_start, self._hash_at_start
        self.latest_refusal: str | None = None

    async def start(self, exchange: Callable[[Path], Awaitable[None]]) -> None:
        """Give an engine that was started again the draft in use; `exchange` copies it."""
        if self.path is None or self.path == self._path_at_start:
            return
        try:
            await exchange(Path(self.path))
        except DraftRefused as error:
            log.error("the draft of %s is no longer in use: %s", self.path, error)
            self.latest_refusal, self._refused_path = f"{self._source}: {error}", self.path
            self.path, self._source = self._path_at_start, AT_START
            self.config_hash = self._hash_at_start

    async def apply(self, path: str, source: str, config_hash: str | None = None) -> None:
        """Replace the running draft by the one in a folder; a cancelled caller does not end it.

        Args:
            config_hash: of the configuration with this draft; None: it stays.

        Raises:
            DraftRefused: it cannot replace the running draft.
            EngineFailed: the engine has failed.
        """
        task = asyncio.create_task(self._apply(path, source, config_hash))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        error = await asyncio.shield(task)
        if error is not None:
            raise error

    def describe(self) -> dict[str, object]:
        """Return the draft, its source, what replaces it now, and the latest refusal."""
        return {
            "algorithm": self._algorithm.value,
            "path": self.path,
            "config_hash": self.config_hash,
            "source": self._source,
            "changing_to": self._changing_to,
            "refused_path": self._refused_path,
            "refused_needs_restart": self._needs_restart,
            "latest_refusal": self.latest_refusal,
        }

    async def _apply(self, path: str, source: str, config_hash: str | None) -> Exception | None:
        """Return why the draft was not replaced, if it was not."""
        async with self._changing:
            self._changing_to = path
            try:
                await self._exchange(Path(path))
            except DraftRefused as error:
                self._refused_path, self.latest_refusal = path, f"{source}: {error}"
                self._needs_restart = error.needs_restart
                self._count("refused")
                return error
            except EngineFailed as error:
                return error
            finally:
                self._changing_to = None
            self.path, self._source = path, source
            self.config_hash = config_hash or self.config_hash
            self._refused_path, self.latest_refusal = None, None
            self._needs_restart = False
            self._count("applied")
            log.info("the draft of %s is in use", path)
            return None
