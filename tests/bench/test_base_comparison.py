"""Two commits compared: the export, the figures by name, and a benchmark of the real engine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.cpu.base_comparison.__main__ import SideFailed, run_section, summary
from bench.cpu.base_comparison.checkout import Side, base_side, export, git, own_environment
from bench.cpu.base_comparison.figures import compare, is_lower_better, numbers, unmatched

NEW = Side("new", "b" * 40, Path(), Path())
BASE = Side("base", "a" * 40, Path(), Path())


def test_numbers_are_flat_and_leave_out_peers_and_the_machine() -> None:
    document = {
        "scheduler_us": {"1": 50, "16": 80.5},
        "rates": {"float32": {"own plain": {"rate": 2}, "transformers plain": {"rate": 3}}},
        "plain_b1_vs_transformers": 2.1,
        "plain_b1_vs_openvino": None,
        "machine": {"cores": 2},
        "floors": {"read": 1.0},
    }
    assert dict(numbers(document)) == {
        "scheduler_us 1": 50.0,
        "scheduler_us 16": 80.5,
        "rates float32 own plain rate": 2.0,
        "plain_b1_vs_transformers": 2.1,
    }


@pytest.mark.parametrize(
    ("name", "is_lower"),
    [
        ("scheduler_us 256", True),
        ("rates float32 own plain single least_cpu_ms_per_token", True),
        ("verify8_over_1", True),
        ("rates float32 own plain single tokens_per_cpu_s", False),
        ("spec_b1_vs_plain", False),
    ],
)
def test_times_are_better_when_lower(name: str, is_lower: bool) -> None:
    assert is_lower_better(name) == is_lower


def test_a_ratio_is_the_median_of_ratios_within_pairs() -> None:
    pairs = [
        ({"step_us 1": 10.0, "rate": 10.0}, {"step_us 1": 8.0, "rate": 9.0}),
        ({"step_us 1": 20.0, "rate": 20.0}, {"step_us 1": 18.0, "rate": 19.0}),
        ({"step_us 1": 10.0, "rate": 10.0}, {"step_us 1": 11.0, "rate": 11.0}),
    ]
    found = compare(pairs)
    step, rate = found["step_us 1"], found["rate"]
    assert (step.ratio, step.lowest_ratio, step.highest_ratio) == (0.9, 0.8, 1.1)
    assert (step.base, step.new, step.pairs, step.is_worse) == (10.0, 11.0, 3, False)
    assert (rate.ratio, rate.is_worse) == (0.95, True)


def test_a_slower_time_counts_as_worse() -> None:
    assert compare([({"step_us": 100.0}, {"step_us": 104.0})])["step_us"].is_worse
    assert not compare([({"step_us": 100.0}, {"step_us": 102.0})])["step_us"].is_worse


def test_figures_of_one_side_alone_are_named() -> None:
    pairs = [({"old": 1.0, "both": 1.0}, {"both": 1.0, "renamed": 1.0})]
    assert unmatched(pairs) == {"base": ["old"], "new": ["renamed"]}
    document = summary((BASE, NEW), compare(pairs), pairs, 1)
    assert document["unmatched"] == {"base": ["old"], "new": ["renamed"]}
    assert json.loads(json.dumps(document))["machine"]["processor"]


def test_a_commit_is_exported_as_it_was(tmp_path: Path) -> None:
    commit = git("rev-parse", "HEAD")
    export(commit, tmp_path)
    listed = git("ls-tree", "-r", "--name-only", commit).splitlines()
    written = {str(f.relative_to(tmp_path)) for f in tmp_path.rglob("*") if f.is_file()}
    assert set(listed) == written
    assert git("show", f"{commit}:Makefile") == (tmp_path / "Makefile").read_text().strip()


def test_an_unknown_commit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        base_side("no-such-commit", tmp_path)


def test_a_side_that_fails_is_named_with_its_output(tmp_path: Path) -> None:
    (tmp_path / "bench" / "cpu" / "engine").mkdir(parents=True)
    (tmp_path / "bench" / "cpu" / "engine" / "__main__.py").write_text(
        "raise SystemExit('no compiler')\n"
    )
    side = Side("base", "a" * 40, tmp_path, Path(sys.executable))
    with pytest.raises(SideFailed, match=r"base \(aaaaaaaaaaaa\), section host: no compiler"):
        run_section(side, "host", True)


def test_a_side_runs_its_own_modules(tmp_path: Path) -> None:
    (tmp_path / "bench" / "cpu" / "engine").mkdir(parents=True)
    code = (
        "import json, sys\nprint('a table')\nprint(json.dumps({'x_us': 3, 'n': len(sys.argv)}))\n"
    )
    (tmp_path / "bench" / "cpu" / "engine" / "__main__.py").write_text(code)
    side = Side("base", "a" * 40, tmp_path, Path(sys.executable))
    assert run_section(side, "host", True) == {"x_us": 3.0, "n": 4.0}
    assert own_environment(tmp_path)["PYTHONPATH"] == str(tmp_path)
