"""`python -m kernels.table report.xml`: every op's reference, kernel, tests that passed, benchmark.

The report is pytest's --junitxml. Ends with 1 if an op lacks one of them.
"""

import argparse
import importlib
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from specdecode_kernels.registry import OPS, Op

ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True, slots=True)
class Row:
    """What is there for one op."""

    op: str
    has_reference: bool
    has_triton: bool
    passed: int
    has_bench: bool

    @property
    def is_complete(self) -> bool:
        """Nothing is missing."""
        return self.has_reference and self.has_triton and self.passed > 0 and self.has_bench

    def __str__(self) -> str:
        """One line of the table."""
        marks = ["yes" if it else "MISSING" for it in (self.has_reference, self.has_triton)]
        tests, bench = self.passed or "MISSING", "yes" if self.has_bench else "MISSING"
        return f"{self.op:16}{marks[0]:12}{marks[1]:10}{tests!s:>8}   {bench}"


def count_passed(report: Path) -> Counter[str]:
    """Count by test file, named as the report does, the cases that ran and did not fail."""
    cases = ElementTree.parse(report).iter("testcase")
    return Counter(case.get("classname", "") for case in cases if len(case) == 0)


def look_up(op: Op, passed: Counter[str]) -> Row:
    """Look for the parts of an op."""
    tests = op.tests.removesuffix(".py").replace("/", ".")
    return Row(
        op.name,
        is_there(op.reference),
        is_there(op.triton),
        passed[tests],
        (ROOT / op.bench).is_file(),
    )


def is_there(name: str) -> bool:
    """Say whether a dotted name can be imported."""
    module, _, attribute = name.rpartition(".")
    try:
        return callable(getattr(importlib.import_module(module), attribute, None))
    except ModuleNotFoundError:
        return False


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 if something is missing."""
    parser = argparse.ArgumentParser(prog="kernels.table")
    parser.add_argument("report", type=Path)
    passed = count_passed(parser.parse_args(arguments).report)
    rows = [look_up(op, passed) for op in OPS]
    print(f"{'op':16}{'reference':12}{'Triton':10}{'passed':>8}   bench")
    for row in rows:
        print(row)
    missing = [row.op for row in rows if not row.is_complete]
    print(
        f"{len(rows)} ops, " + (f"incomplete: {', '.join(missing)}" if missing else "none missing")
    )
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
