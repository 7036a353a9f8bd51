"""`make test`: which suites run after a failure, and what their times are."""

import re
import sys
from pathlib import Path

import pytest

from scripts import test as suites
from scripts.test import Suite, run_lane

COMPUTE = "sum(range(5 * 10**6))"
OF_A_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {COMPUTE!r}])"


def suite(name: str, code: str, *, is_preparation: bool = False) -> Suite:
    return Suite(name, (sys.executable, "-c", code), is_preparation)


def test_a_failed_suite_keeps_no_other_of_its_lane_from_running() -> None:
    lane = (
        suite("fails", "raise SystemExit(3)"),
        suite("ends", "import os; os.kill(os.getpid(), 9)"),
    )
    results = run_lane((*lane, suite("passes", "")))
    assert [each.status for each in results] == [3, -9, 0]
    assert not any(each.blocks for each in results)


def test_processor_time_includes_that_of_child_processes() -> None:
    waiting, computing = run_lane(
        (suite("waits", "import time; time.sleep(0.5)"), suite("", OF_A_CHILD))
    )
    assert waiting.seconds >= 0.5
    assert 0 < waiting.cpu_seconds < computing.cpu_seconds


def test_the_table_names_the_failures_of_each_suite(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest_output = "print('FAILED a.py::b - E\\nERROR c.py\\n1 failed'); raise SystemExit(1)"
    lane = (suite("unit", pytest_output), suite("fuzz", "raise SystemExit('no engine')"))
    monkeypatch.setattr(suites, "LANES", (lane, (suite("passes", "print('FAILED ')"),)))
    monkeypatch.setattr(suites, "NODE_LANE", ())
    assert suites.main() == 1
    _, shown = capfd.readouterr().out.split("result\n")
    of_unit, of_fuzz = "  FAILED a.py::b - E\n  ERROR c.py\n", "  no engine\n"
    assert f"failed\n{of_unit}fuzz" in shown
    assert f"failed\n{of_fuzz}passes" in shown
    assert shown.count("FAILED") == 1


def test_a_failed_preparation_in_any_lane_blocks_the_suites_on_the_node(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    preparation = suite("images", "raise SystemExit(1)", is_preparation=True)
    monkeypatch.setattr(suites, "LANES", ((suite("unit", ""),), (preparation, suite("API", ""))))
    monkeypatch.setattr(suites, "NODE_LANE", (suite("node", ""),))
    assert suites.main() == 1
    *_, last = capfd.readouterr().out.splitlines()
    assert last.startswith('{"failed": ["images", "API", "node"]')


@pytest.mark.parametrize(
    ("mark", "folders"),
    [("apiserver", suites.API_SERVER_FOLDERS), ("node", suites.NODE_FOLDERS)],
)
def test_the_folders_of_a_mark_have_all_its_tests(mark: str, folders: tuple[str, ...]) -> None:
    tests = suites.ROOT / "tests"
    uses = re.compile(rf"pytest\.mark\.{mark}\b")
    marked = {file for file in tests.rglob("*.py") if uses.search(file.read_text())}
    for folder in folders:
        inside = {file for file in marked if file.is_relative_to(tests / folder)}
        assert inside, f"no test in tests/{folder} has the mark {mark}"
        marked -= inside
    assert marked == set[Path]()
