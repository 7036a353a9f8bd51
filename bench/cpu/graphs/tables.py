"""Ten speculation tables of different kinds: lower bound of a batch-size range to its depths."""

from dataclasses import dataclass

from specdecode_engine.adaptive.table import BatchRange, RangeTable


@dataclass(frozen=True, slots=True)
class NamedTable:
    """A table and the largest batch that it is tried with."""

    name: str
    entries: tuple[tuple[int, tuple[int, ...]], ...]
    max_running: int

    @property
    def table(self) -> RangeTable:
        """The table as policies read it."""
        return RangeTable(BatchRange(bound, steps) for bound, steps in self.entries)


_DEFAULT = ((1, (1, 3, 5, 7)), (8, (0, 1, 3)), (32, (0, 1)), (64, (0,)))

TABLES = (
    NamedTable("SGLang's default", _DEFAULT, 64),
    NamedTable("SGLang's first default", ((1, (1, 3, 7)), (8, (1, 3)), (32, (1,))), 64),
    NamedTable("the README's", ((1, (1, 3, 5, 7)), (8, (0, 1, 3)), (32, (0, 1))), 64),
    NamedTable("one range", ((1, (0, 1, 3, 5)),), 32),
    NamedTable("one depth", ((1, (3,)),), 48),
    NamedTable("off beyond four", ((1, (5,)), (5, (0,))), 24),
    NamedTable("deep only alone", ((1, (9, 12)), (2, (1, 2)), (3, (0,))), 16),
    NamedTable("bounds between sizes", ((1, (2, 4)), (7, (1, 2)), (13, (0, 1)), (30, (0,))), 40),
    NamedTable("begins above one", ((4, (1, 6)), (10, (2,))), 20),
    NamedTable("a range that no batch reaches", ((1, (1, 4)), (6, (0, 2)), (100, (16,))), 12),
)
