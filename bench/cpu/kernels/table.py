"""`python -m bench.cpu.kernels.table report.xml`: every op's kernels, tests that passed, benchmark.

The report is pytest's --junitxml. Ends with 1 if an op lacks one of them. The reference of every op
is a required field of `Backend`.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import torch

from specdecode_kernels.testing import DEVICE, backend_of, implementation_of

ROOT = Path(__file__).resolve().parents[3]

KERNEL_OPS = (
    "rms_norm",
    "add_rms_norm",
    "apply_rope",
    "silu_and_mul",
    "linear",
    "route_experts",
    "experts",
    "gelu_tanh_and_mul",
    "softcap",
    "select_tree_nodes",
    "build_tree_mask",
    "verify_chain",
    "verify_tree",
    "gather_accepted",
    "compact_kv",
    "gated_delta",
    "keep_drafted",
    "apply_penalties",
    "sample",
    "store_kv",
    "rope_and_store_kv",
    "attend",
    "merge_states",
)
"""Ops that have a Triton kernel; linear maps have one for integers, others are left to torch."""


def path_of_tests(op: str) -> str:
    """The path of an op's tests."""
    return f"tests/kernels/test_{op}_triton.py"


def path_of_bench(op: str) -> str:
    """The path of an op's benchmark."""
    return f"bench/cpu/kernels/{op}.py"


@dataclass(frozen=True, slots=True)
class Row:
    """What is there for one op."""

    op: str
    has_triton: bool
    has_c: bool
    passed: int
    has_bench: bool

    @property
    def is_complete(self) -> bool:
        """Nothing is missing; C is only for what takes most of a step on a CPU."""
        return self.has_triton and self.passed > 0 and self.has_bench

    def __str__(self) -> str:
        """One line of the table."""
        triton, bench = ("yes" if it else "MISSING" for it in (self.has_triton, self.has_bench))
        tests, in_c = self.passed or "MISSING", "yes" if self.has_c else "-"
        return f"{self.op:20}{triton:10}{in_c:5}{tests!s:>8}   {bench}"


def count_passed(report: Path) -> Counter[str]:
    """Count by test file, named as the report does, the cases that ran and did not fail."""
    cases = ElementTree.parse(report).iter("testcase")
    return Counter(case.get("classname", "") for case in cases if len(case) == 0)


def look_up(op: str, passed: Counter[str]) -> Row:
    """Look for the parts of an op."""
    tests = path_of_tests(op).removesuffix(".py").replace("/", ".")
    has_bench = (ROOT / path_of_bench(op)).is_file()
    triton, in_c = backend_of("triton", DEVICE), backend_of("cpu", torch.device("cpu"))
    return Row(
        op,
        implementation_of(op, triton) == "triton",
        implementation_of(op, in_c) == "cpu",
        passed[tests],
        has_bench,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 if something is missing."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="bench.cpu.kernels.table")
    parser.add_argument("report", type=Path)
    passed = count_passed(parser.parse_args(arguments).report)
    rows = [look_up(op, passed) for op in KERNEL_OPS]
    print(f"{'op':20}{'Triton':10}{'C':5}{'passed':>8}   bench")
    for row in rows:
        print(row)
    missing = [row.op for row in rows if not row.is_complete]
    print(
        f"{len(rows)} ops, " + (f"incomplete: {', '.join(missing)}" if missing else "none missing")
    )
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
