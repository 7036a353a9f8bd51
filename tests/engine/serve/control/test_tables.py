"""The limit of a step's time: which table an engine gets it with, and when it changes."""

import math
from typing import Any

from specdecode_api.boot import EngineBoot
from specdecode_engine.adaptive.table import RangeTable
from specdecode_engine.serve.control.drafts import Drafts
from specdecode_engine.serve.control.tables import Tables, TableWatch

WIDE = {"1": {"candidate_steps": [0, 1, 3]}}
PLAIN = {"1": {"candidate_steps": [0]}}
LIMITED = {"objective": "inter_token_latency", "max_inter_token_ms": 30}


def boot_of(**speculation: object) -> EngineBoot:
    section: dict[str, Any] = {"algorithm": "NGRAM", "policy": "goodput", "table": WIDE}
    return EngineBoot.model_validate(
        {"model": {"path": "/models/m"}, "speculation": section | speculation}
    )


class Watched:
    """The tables of an engine whose boot file changes; what the engine got."""

    def __init__(self, boot: EngineBoot) -> None:
        self.boot = boot
        self.reloaded: list[RangeTable] = []
        self.results: list[str] = []
        self.tables = Tables(boot.speculation, self._reload, self.results.append)
        drafts = Drafts(boot, self._exchange, self.results.append)
        self.watch = TableWatch(boot, lambda: self.boot, self.tables, drafts)

    async def _reload(self, table: RangeTable) -> None:
        self.reloaded.append(table)

    async def _exchange(self, folder: object) -> None:
        raise AssertionError(f"no draft is exchanged: {folder}")

    async def change(self, **speculation: object) -> None:
        self.boot = boot_of(**speculation)
        await self.watch.check()

    @property
    def limits_ms(self) -> list[float]:
        return [1000 * table.max_step_s for table in self.reloaded]


async def test_a_changed_limit_reaches_the_engine_without_a_restart() -> None:
    engine = Watched(boot_of())
    before = engine.tables.table_hash
    await engine.change(**LIMITED)
    await engine.change(**LIMITED | {"max_inter_token_ms": 45.5})
    await engine.watch.check()
    await engine.change()
    assert engine.limits_ms == [30, 45.5, math.inf]
    assert engine.watch.needs_restart == ()
    assert engine.tables.table_hash == before
    assert {table.candidates() for table in engine.reloaded} == {(0, 1, 3)}
    assert engine.tables.describe()["max_inter_token_ms"] is None


async def test_tables_that_come_and_go_keep_the_limit() -> None:
    engine = Watched(boot_of(**LIMITED))
    assert engine.tables.describe()["max_inter_token_ms"] == 30
    await engine.tables.apply_document(PLAIN, "test", expires_after_s=60)
    await engine.change(**LIMITED | {"max_inter_token_ms": 20})
    assert engine.tables.describe()["source"] == "test"
    await engine.tables.remove()
    assert [table.candidates() for table in engine.reloaded] == [(0,), (0,), (0, 1, 3)]
    assert engine.limits_ms == [30, 20, 20]


async def test_an_engine_that_starts_again_gets_the_limit_in_force() -> None:
    engine = Watched(boot_of())
    await engine.tables.start(None, engine._reload)
    await engine.change(**LIMITED)
    await engine.tables.start(None, engine._reload)
    assert engine.limits_ms == [30, 30]


async def test_a_limit_that_comes_with_another_policy_waits_for_the_restart() -> None:
    engine = Watched(boot_of(policy="static"))
    await engine.change(**LIMITED)
    assert engine.watch.needs_restart == ("speculation.policy",)
    assert set(engine.limits_ms) <= {math.inf}
