"""Looks at the files that the table came from, and takes up what changed in them.

A mounted ConfigMap changes under a running pod. Only the table is taken up; whatever else is
different needs a restart, and the log and /server_info say so.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

from specdecode_api.boot import EngineBoot
from specdecode_api.table import BadTable
from specdecode_engine.depth.decision import TableRefused
from specdecode_engine.serve.core import EngineFailed
from specdecode_engine.serve.tables import Tables

log = logging.getLogger(__name__)

PERIOD_SECONDS = 2.0
SOURCE = "changed file"


class BadConfiguration(Exception):
    """What the engine is started from cannot be read any more; the message lists the mistakes."""


Reread = Callable[[], EngineBoot]
"""Reads flags, boot file and table again, as at start; raises `BadConfiguration`."""


class TableWatch:
    """Compares what would be started now with what is running.

    Args:
        boot: what the engine was started with, its table read.
        reread: reads it anew.
        tables: takes up changes.
    """

    def __init__(self, boot: EngineBoot, reread: Reread, tables: Tables) -> None:
        self._running = boot
        self._seen: EngineBoot | str = boot
        self._reread = reread
        self._tables = tables
        self.needs_restart: tuple[str, ...] = ()

    async def run(self, period_s: float = PERIOD_SECONDS) -> None:
        """Look again and again."""
        while True:
            await asyncio.sleep(period_s)
            await self.look()

    async def look(self) -> None:
        """Look once; what was seen before is not taken up or complained about again."""
        try:
            found: EngineBoot | str = await asyncio.to_thread(self._reread)
        except BadConfiguration as error:
            found = str(error)
        if found == self._seen:
            return
        before, self._seen = self._seen, found
        if isinstance(found, str):
            log.error("the changed configuration is refused, the old one stays: %s", found)
            self._tables.refuse(SOURCE, found)
            return
        self._note_restart(found)
        if isinstance(before, str) or _table_of(found) != _table_of(before):
            await self._take(found)

    async def _take(self, found: EngineBoot) -> None:
        try:
            await self._tables.take_boot(found.speculation, SOURCE)
        except (BadTable, TableRefused, EngineFailed) as error:
            log.error("the changed table is refused, the old one stays: %s", error)
        else:
            log.info("the changed table is in force")

    def _note_restart(self, found: EngineBoot) -> None:
        running, wanted = _without_table(self._running), _without_table(found)
        self.needs_restart = tuple(_differences(running, wanted))
        if self.needs_restart:
            log.warning("changed, but only a restart takes it up: %s", self.needs_restart)


def _table_of(boot: EngineBoot) -> tuple[object, object]:
    return boot.speculation.entries, boot.speculation.tuned


def _without_table(boot: EngineBoot) -> dict[str, Any]:
    tables = {"table", "table_path", "tuned"}
    return boot.model_dump(mode="json", exclude={"speculation": tables, "config_hash": True})


def _differences(left: Any, right: Any, place: str = "") -> Iterator[str]:
    """Yield the dotted names of the fields that differ."""
    if isinstance(left, dict) and isinstance(right, dict):
        for name in left.keys() | right.keys():
            inner = f"{place}.{name}" if place else str(name)
            yield from _differences(left.get(name), right.get(name), inner)
    elif left != right:
        yield place
