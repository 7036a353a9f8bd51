"""The draft in use, and its exchange while the engine serves."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from specdecode_api.boot import SpeculationBoot
from specdecode_engine.adaptive.policy import DraftRefused, StageDraft

log = logging.getLogger(__name__)

AT_START = "boot file or flags"


class Drafts:
    """Exchanges drafts, one at a time; a refused draft leaves the old one in use.

    Owned by the event loop. Reading takes place in a thread, the copy between two steps.

    Args:
        speculation: the configuration at start.
        between_steps: runs a function on the engine's thread.
        count: called once per attempt with "applied" or "refused".
    """

    def __init__(
        self,
        speculation: SpeculationBoot,
        between_steps: Callable[[Callable[[], None]], Awaitable[None]],
        count: Callable[[str], None],
    ) -> None:
        self._speculation = speculation
        self._between_steps = between_steps
        self._count = count
        self._stage: StageDraft | None = None
        self._changing = asyncio.Lock()
        self._source = AT_START
        self.path = speculation.draft_path
        self.latest_refusal: str | None = None

    def start(self, stage: StageDraft | None) -> None:
        """Enable exchanges, once the engine is loaded."""
        self._stage = stage

    async def apply(self, path: str, source: str) -> None:
        """Replace the running draft by the one in a folder.

        Raises:
            DraftRefused: it cannot replace the running draft.
            EngineFailed: the engine has failed.
        """
        async with self._changing:
            try:
                if self._stage is None:
                    raise DraftRefused("this engine has no draft model that could be exchanged")
                install = await asyncio.to_thread(self._stage, Path(path))
            except DraftRefused as error:
                self.latest_refusal = f"{source}: {error}"
                self._count("refused")
                raise
            await self._between_steps(install)
            self.path, self._source, self.latest_refusal = path, source, None
            self._count("applied")
            log.info("the draft of %s is in use", path)

    def describe(self) -> dict[str, object]:
        """Return the draft, its source, and why the latest refused draft was refused."""
        return {
            "algorithm": self._speculation.algorithm.value,
            "path": self.path,
            "source": self._source,
            "latest_refusal": self.latest_refusal,
        }
