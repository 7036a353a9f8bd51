"""Watches the files that contain the speculation table, and applies changes of the table.

A mounted ConfigMap changes while the pod runs. Only the table is applied; other changes require a
restart, which the log and /server_info report.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

from specdecode_api.boot import EngineBoot
from specdecode_api.table import TableError
from specdecode_engine.adaptive.policy import TableRefused
from specdecode_engine.serve.control.tables import Tables
from specdecode_engine.serve.engine.core import EngineFailed

log = logging.getLogger(__name__)

PERIOD_SECONDS = 2.0
SOURCE = "changed file"


class ConfigurationError(Exception):
    """The engine's configuration is not valid; the message lists all errors."""


ReadBoot = Callable[[], EngineBoot]
"""Reads flags, boot file and table as at start; raises `ConfigurationError`."""


class TableWatch:
    """Compares the configuration in the files with the running one.

    Args:
        boot: the configuration at start, with its table.
        reread: reads the configuration again.
        tables: applies a changed table.
    """

    def __init__(self, boot: EngineBoot, reread: ReadBoot, tables: Tables) -> None:
        self._running = boot
        self._seen: EngineBoot | str = boot
        self._reread = reread
        self._tables = tables
        self.needs_restart: tuple[str, ...] = ()

    async def run(self, period_s: float = PERIOD_SECONDS) -> None:
        while True:
            await asyncio.sleep(period_s)
            await self.check()

    async def check(self) -> None:
        """Check once; a configuration that was seen before is not applied or reported again."""
        try:
            found: EngineBoot | str = await asyncio.to_thread(self._reread)
        except ConfigurationError as error:
            found = str(error)
        if found == self._seen:
            return
        before, self._seen = self._seen, found
        if isinstance(found, str):
            log.error("the changed configuration is refused; the old one stays in force: %s", found)
            self._tables.refuse(SOURCE, found)
            return
        self._report_restart(found)
        if isinstance(before, str) or _table_of(found) != _table_of(before):
            await self._apply(found)

    async def _apply(self, found: EngineBoot) -> None:
        try:
            await self._tables.apply_boot(found.speculation, SOURCE)
        except (TableError, TableRefused, EngineFailed) as error:
            log.error("the changed table is refused; the old one stays in force: %s", error)
        else:
            log.info("the changed table is in force")

    def _report_restart(self, found: EngineBoot) -> None:
        running, changed = _without_table(self._running), _without_table(found)
        self.needs_restart = tuple(_differences(running, changed))
        if self.needs_restart:
            log.warning("changed, and requires a restart: %s", self.needs_restart)


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
