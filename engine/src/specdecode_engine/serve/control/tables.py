"""The speculation table in force, the result of attempts to replace it, and the files to watch."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from specdecode_api.boot import EngineBoot, SpeculationBoot
from specdecode_api.speculation import Algorithm, Policy
from specdecode_api.table import TableEntry, TableError, read_table, table_warnings
from specdecode_engine.adaptive.policy import DraftRefused, TableRefused
from specdecode_engine.adaptive.table import RangeTable
from specdecode_engine.process import ConfigurationError
from specdecode_engine.serve.control.drafts import Drafts
from specdecode_engine.serve.engine.core import EngineFailed
from specdecode_engine.startup.policies import range_table, table_without_entries

log = logging.getLogger(__name__)

AT_START = "boot file or flags"
TUNED = "tuned table of the boot file"
CHANGED_FILE = "changed file"


@dataclass(frozen=True, slots=True)
class TableSource:
    """A table, as its entries and as policies use it, and where it came from."""

    entries: Mapping[str, TableEntry]
    table: RangeTable
    source: str


class Tables:
    """Applies new tables, one at a time; a refused table leaves the old one in force.

    A table may expire. The engine then returns to the last table without expiry, so that the table
    of a trial does not outlive an operator that is gone. Owned by the event loop, whose monotonic
    clock ends the time: no step pays for it.

    Args:
        speculation: the configuration at start, with its table.
        reload: passes a table to the engine.
        count: called once per attempt with "applied", "renewed" (its expiry only) or "refused",
            and with "expired" or "removed" when the table of a limited time ends.
    """

    def __init__(
        self,
        speculation: SpeculationBoot,
        reload: Callable[[RangeTable], Awaitable[None]],
        count: Callable[[str], None],
    ) -> None:
        self._speculation = speculation
        self._pass_on = reload
        self._max_step_s = speculation.max_step_s
        self._count = count
        table = range_table(speculation.entries, speculation.policy)
        at_start = TableSource(
            speculation.entries, table or table_without_entries(speculation), AT_START
        )
        self._lasting = self._in_force = at_start
        self._deadline_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._changing = asyncio.Lock()
        self._has_started = False
        self._returning: asyncio.Task[None] | None = None
        self.latest_refusal: str | None = None

    @property
    def table_hash(self) -> str:
        """Hash of the table in force, as metrics name it."""
        return self._in_force.table.table_hash

    @property
    def max_steps(self) -> int:
        """The most draft steps of the table in force."""
        return self._in_force.table.candidates()[-1]

    async def start(
        self, at_start: RangeTable | None, reload: Callable[[RangeTable], Awaitable[None]]
    ) -> None:
        """Apply the tuned table before the first request; an invalid one is refused.

        An engine that was started again gets the table in force.

        Args:
            at_start: the policy's table, if the draft determines a part of it.
            reload: passes a table to the engine that has started.
        """
        if self._has_started:
            await reload(self._in_force.table.within(self._max_step_s))
            return
        self._has_started = True
        if at_start is not None:
            self._lasting = self._in_force = replace(self._in_force, table=at_start)
        if not self._speculation.tuned:
            return
        if (error := self._speculation.tuned_error) is not None:
            self.refuse(TUNED, error)
            return
        entries = self._speculation.tuned
        table = range_table(entries, self._speculation.policy)
        assert table is not None, "a tuned table has entries"
        await reload(table.within(self._max_step_s))
        self._record(TableSource(entries, table, TUNED), None)
        self._count("applied")

    async def apply_boot(self, speculation: SpeculationBoot, source: str) -> None:
        """Apply the table of a changed boot file: the tuned one where it can be used.

        Raises as `apply_document`.
        """
        refusal = speculation.tuned_error if speculation.tuned else None
        if speculation.tuned and refusal is None:
            try:
                await self._apply(speculation.tuned, TUNED)
                return
            except TableRefused as error:
                refusal = str(error)
        with self._recording_refusal(source):
            await self._apply(speculation.entries, source)
        if refusal is not None:
            self.refuse(TUNED, refusal)

    async def apply_document(
        self, document: object, source: str, expires_after_s: float | None = None
    ) -> None:
        """Read a table in any of its forms, and choose draft steps by it from the next step on.

        Args:
            expires_after_s: return to the last table without expiry after this time, unless the
                same or another table comes earlier.

        Raises:
            TableError: the table is not valid; the message lists all errors.
            TableRefused: the table requires a restart.
            EngineFailed: the engine has failed.
        """
        policy = self._speculation.policy
        with self._recording_refusal(source):
            table = read_table(document, policy)
            if table.policy not in (None, policy):
                raise TableRefused(
                    f"the table requires policy {table.policy}, and policy {policy} is running; "
                    f"remove the policy from the table, or restart with policy {table.policy}"
                )
            await self._apply(table.entries, source, expires_after_s)

    async def limit_steps(self, speculation: SpeculationBoot) -> None:
        """Hold steps to the limit of a changed boot file, whatever table is in force.

        Raises:
            EngineFailed: the engine has failed.
        """
        knows_costs = self._speculation.policy is Policy.GOODPUT is speculation.policy
        async with self._changing:
            if knows_costs and speculation.max_step_s != self._max_step_s:
                self._max_step_s = speculation.max_step_s
                await self._reload(self._in_force.table)

    async def _reload(self, table: RangeTable) -> None:
        await self._pass_on(table.within(self._max_step_s))

    async def remove(self) -> None:
        """End the time of the table in force now, if it is limited; raises `EngineFailed`."""
        async with self._changing:
            if self._deadline_s is not None:
                await self._return("removed")

    def refuse(self, source: str, reason: str) -> None:
        """Record that a source had no usable table."""
        self.latest_refusal = f"{source}: {reason}"
        self._count("refused")

    def describe(self) -> dict[str, object]:
        """Return the table, its source, and why the latest refused table was refused."""
        now, policy, limit_s = self._in_force, self._speculation.policy, self._max_step_s
        return {
            "policy": policy.value,
            "max_inter_token_ms": None if limit_s == math.inf else round(1000 * limit_s, 6),
            "table_hash": self.table_hash,
            "source": now.source,
            "entries": {at: entry.model_dump(mode="json") for at, entry in now.entries.items()},
            "expiresAfterSeconds": self._remaining_s(),
            "lasting_table_hash": self._lasting.table.table_hash,
            "warnings": list(table_warnings(now.entries, policy)),
            "latest_refusal": self.latest_refusal,
        }

    def _remaining_s(self) -> float | None:
        if self._deadline_s is None:
            return None
        return max(round(self._deadline_s - asyncio.get_running_loop().time(), 3), 0.0)

    async def _apply(
        self,
        entries: Mapping[str, TableEntry],
        source: str,
        expires_after_s: float | None = None,
    ) -> None:
        if self._speculation.algorithm is Algorithm.NONE:
            raise TableRefused("algorithm NONE does not speculate; restart with another algorithm")
        table = range_table(entries, self._speculation.policy)
        if table is None:
            raise TableRefused("it contains no table; restart to run without one")
        if (error := self._speculation.verify_tokens_error(entries)) is not None:
            raise TableRefused(error)
        async with self._changing:
            is_new = table.table_hash != self.table_hash
            if is_new:  # else it would lose what the policy has learned since
                await self._reload(table)
            self._record(TableSource(entries, table, source), expires_after_s)
            self._count("applied" if is_new else "renewed")

    def _record(self, applied: TableSource, expires_after_s: float | None) -> None:
        self._in_force = applied
        self.latest_refusal = None
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._deadline_s = None
        if expires_after_s is None:
            self._lasting = applied
            return
        loop = asyncio.get_running_loop()
        self._deadline_s = loop.time() + expires_after_s
        self._timer = loop.call_at(self._deadline_s, self._expire)

    def _expire(self) -> None:
        self._returning = asyncio.create_task(self._return_unless_renewed(self._timer))

    async def _return_unless_renewed(self, timer: asyncio.TimerHandle | None) -> None:
        async with self._changing:
            # The clock does not decide: a loop calls a timer up to a millisecond before its time.
            if self._timer is not timer:
                return
            log.warning(
                "the table of %s has expired; the engine returns to the table of: %s",
                self._in_force.source,
                self._lasting.source,
            )
            with suppress(EngineFailed):
                await self._return("expired")

    async def _return(self, result: str) -> None:
        """Return to the last table without expiry."""
        if self._lasting.table.table_hash != self.table_hash:
            await self._reload(self._lasting.table)
        refusal = self.latest_refusal
        self._record(self._lasting, None)
        self.latest_refusal = refusal
        self._count(result)

    @contextmanager
    def _recording_refusal(self, source: str) -> Iterator[None]:
        try:
            yield
        except (TableError, TableRefused) as error:
            self.refuse(source, str(error))
            raise


ReadBoot = Callable[[], EngineBoot]
"""Reads flags, boot file and table as at start; raises `ConfigurationError`."""


class TableWatch:
    """Watches the files that contain the table, and applies changes of the table.

    A mounted ConfigMap changes while the pod runs. The table is applied, and the draft where it can
    replace the running one; other changes require a restart, which the log and /server_info report.
    """

    def __init__(self, boot: EngineBoot, reread: ReadBoot, tables: Tables, drafts: Drafts) -> None:
        self._running = boot
        self._seen: EngineBoot | str = boot
        self._reread = reread
        self._tables = tables
        self._drafts = drafts
        self.needs_restart: tuple[str, ...] = ()

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
            self._tables.refuse(CHANGED_FILE, found)
            return
        await self._apply_draft(found)
        running, changed = _without_table(self._running), _without_table(found)
        running["speculation"]["draft_path"] = self._drafts.path
        self.needs_restart = tuple(_differences(running, changed))
        if self.needs_restart:
            log.warning("changed, and requires a restart: %s", self.needs_restart)
        try:
            await self._tables.limit_steps(found.speculation)
            if not isinstance(before, str) and _table_of(found) == _table_of(before):
                return
            await self._tables.apply_boot(found.speculation, CHANGED_FILE)
        except (TableError, TableRefused, EngineFailed) as error:
            log.error("the changed table is refused; the old one stays in force: %s", error)
        else:
            log.info("the changed table is in force")

    async def _apply_draft(self, found: EngineBoot) -> None:
        path = found.speculation.draft_path
        if path is None or path == self._drafts.path:
            return
        try:
            await self._drafts.apply(path, CHANGED_FILE, found.config_hash)
        except (DraftRefused, EngineFailed) as error:
            log.error("the changed draft is refused; the old one stays in use: %s", error)


def _table_of(boot: EngineBoot) -> tuple[object, object]:
    return boot.speculation.entries, boot.speculation.tuned


def _without_table(boot: EngineBoot) -> dict[str, Any]:
    hot = {"table", "table_path", "tuned", "objective", "max_inter_token_ms"}
    return boot.model_dump(mode="json", exclude={"speculation": hot, "config_hash": True})


def _differences(left: Any, right: Any, place: str = "") -> Iterator[str]:
    """Yield the dotted names of the fields that differ."""
    if isinstance(left, dict) and isinstance(right, dict):
        for name in left.keys() | right.keys():
            inner = f"{place}.{name}" if place else str(name)
            yield from _differences(left.get(name), right.get(name), inner)
    elif left != right:
        yield place
