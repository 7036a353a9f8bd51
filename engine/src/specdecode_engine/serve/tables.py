"""The speculation table in force, and what became of every attempt to change it."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager

from specdecode_api.boot import SpeculationBoot
from specdecode_api.series import table_hash
from specdecode_api.speculation import Algorithm
from specdecode_api.table import (
    BadTable,
    SpeculationTable,
    TableEntry,
    read_table,
    table_warnings,
)
from specdecode_engine.depth.decision import TableRefused
from specdecode_engine.depth.ranges import DepthTable
from specdecode_engine.policies import depth_table
from specdecode_engine.serve.core import Core

AT_START = "boot file or flags"
TUNED = "tuned table of the boot file"


class Tables:
    """Takes up new tables, one at a time; a refused one leaves the old one in force.

    Args:
        speculation: what the engine was started with, its table read.
        reload: hands a table to the engine.
        count: told "applied" or "refused", once per attempt.
    """

    def __init__(
        self,
        speculation: SpeculationBoot,
        reload: Callable[[DepthTable], Awaitable[None]],
        count: Callable[[str], None],
    ) -> None:
        self._speculation = speculation
        self._reload = reload
        self._count = count
        self.entries: Mapping[str, TableEntry] = speculation.entries
        self.table_hash = table_hash(speculation.policy, self.entries)
        self.source = AT_START
        self.warnings = table_warnings(self.entries, speculation.policy)
        self.latest_refusal: str | None = None

    def start(self, core: Core) -> None:
        """Give the engine its tuned table before anybody is served; a bad one is refused."""
        if not self._speculation.tuned:
            return
        if (fault := self._speculation.tuned_fault) is not None:
            self.refuse(TUNED, fault)
            return
        entries = self._speculation.tuned
        table = depth_table(entries, self._speculation.policy)
        assert table is not None, "an empty tuned table is none"
        core.reload(table)
        self._note(entries, table, TUNED)

    async def take_boot(self, speculation: SpeculationBoot, source: str) -> None:
        """Choose by what a changed boot file says: its tuned table where that can be used.

        Raises as `take_document` does.
        """
        if not speculation.tuned:
            await self.take_entries(speculation.entries, source)
            return
        try:
            if (fault := speculation.tuned_fault) is not None:
                raise TableRefused(fault)
            await self._take(speculation.tuned, TUNED)
        except TableRefused as error:
            await self.take_entries(speculation.entries, source)
            self.refuse(TUNED, str(error))

    async def take_document(self, document: object, source: str) -> None:
        """Read a table in any form and choose by it from the next round on.

        Raises:
            BadTable: with every mistake.
            TableRefused: the engine would have to be restarted for it.
            EngineFailed: the engine is gone.
        """
        with self._noting_refusal(source):
            table = read_table(document, self._speculation.policy)
            self._check_policy(table)
            await self._take(table.entries, source)

    async def take_entries(self, entries: Mapping[str, TableEntry], source: str) -> None:
        """Choose by entries that were read already; raises as `take_document` does."""
        with self._noting_refusal(source):
            await self._take(entries, source)

    def refuse(self, source: str, reason: str) -> None:
        """Note that something offered no usable table."""
        self.latest_refusal = f"{source}: {reason}"
        self._count("refused")

    def describe(self) -> dict[str, object]:
        """Say the table, where it came from, and why the latest refused one was refused."""
        return {
            "policy": self._speculation.policy.value,
            "table_hash": self.table_hash,
            "source": self.source,
            "entries": {
                bound: entry.model_dump(mode="json") for bound, entry in self.entries.items()
            },
            "warnings": list(self.warnings),
            "latest_refusal": self.latest_refusal,
        }

    async def _take(self, entries: Mapping[str, TableEntry], source: str) -> None:
        if self._speculation.algorithm is Algorithm.NONE:
            raise TableRefused("algorithm NONE decodes plainly; restart with another algorithm")
        table = depth_table(entries, self._speculation.policy)
        if table is None:
            raise TableRefused("there is no table in it; restart to do without one")
        await self._reload(table)
        self._note(entries, table, source)

    def _note(self, entries: Mapping[str, TableEntry], table: DepthTable, source: str) -> None:
        self.entries = entries
        self.table_hash = table.table_hash
        self.source = source
        self.warnings = table_warnings(entries, self._speculation.policy)
        self.latest_refusal = None
        self._count("applied")

    def _check_policy(self, table: SpeculationTable) -> None:
        policy = self._speculation.policy
        if table.policy not in (None, policy):
            raise TableRefused(
                f"the table asks for policy {table.policy}, {policy} is running; leave the policy "
                "out, or restart with the other one"
            )

    @contextmanager
    def _noting_refusal(self, source: str) -> Iterator[None]:
        try:
            yield
        except (BadTable, TableRefused) as error:
            self.refuse(source, str(error))
            raise
