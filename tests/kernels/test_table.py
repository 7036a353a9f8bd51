"""The table of ops names what is missing and then ends with 1."""

from pathlib import Path

import pytest

from bench.cpu.kernels.table import KERNEL_OPS, main


def write_report(path: Path, *ops: str) -> Path:
    cases = "".join(
        f'<testcase classname="tests.kernels.test_{op}_triton" name="test_it" />' for op in ops
    )
    failed = (
        '<testcase classname="tests.kernels.test_attend_triton" name="b"><failure /></testcase>'
    )
    path.write_text(f"<testsuites><testsuite>{cases}{failed}</testsuite></testsuites>")
    return path


def test_nothing_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = write_report(tmp_path / "report.xml", *KERNEL_OPS)
    assert main([str(report)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == list(KERNEL_OPS)
    assert lines[-1] == f"{len(KERNEL_OPS)} ops, none missing"


def test_an_op_whose_tests_did_not_pass_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = [op for op in KERNEL_OPS if op != "attend"]
    assert main([str(write_report(tmp_path / "report.xml", *kept))]) == 1
    assert "incomplete: attend" in capsys.readouterr().out
