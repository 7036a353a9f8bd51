"""The draft in use, and its exchange while the engine serves."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from specdecode_api.boot import EngineBoot
from specdecode_engine.adaptive.policy import DraftRefused, StageDraft
from specdecode_engine.serve.engine.core import EngineFailed

log = logging.getLogger(__name__)

AT_START = "boot file or flags"


class Drafts:
    """Exchanges drafts, one at a time; a refused draft leaves the old one in use.

    Owned by the event loop. Reading takes place in a thread, the copy between steps, in pieces.

    Args:
        boot: the configuration at start.
        between_steps: runs a function on the engine's thread.
        count: called once per attempt with "applied" or "refused".
    """

    def __init__(
        self,
        boot: EngineBoot,
        between_steps: Callable[[Callable[[], None]], Awaitable[None]],
        count: Callable[[str], None],
    ) -> None:
        self._algorithm = boot.speculation.algorithm
        self._between_steps = between_steps
        self._count = count
        self._stage: StageDraft | None = None
        self._changing = asyncio.Lock()
        self._tasks: set[asyncio.Task[Exception | None]] = set()
        self._source = AT_START
        self._changing_to: str | None = None
        self._refused_path: str | None = None
        self._needs_restart = False
        self.path = boot.speculation.draft_path
        self.config_hash = boot.config_hash  # with the draft in use
        self.latest_refusal: str | None = None

    def start(self, stage: StageDraft | None) -> None:
        """Enable exchanges, once the engine is loaded."""
        self._stage = stage

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
                await self._exchange(path)
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

    async def _exchange(self, path: str) -> None:
        if self._stage is None:
            message = "this engine has no draft model that could be exchanged"
            raise DraftRefused(message, needs_restart=True)
        pieces = await asyncio.to_thread(self._stage, Path(path))
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            await self._between_steps(piece)
