"""Tunings of linear maps: what is chosen, what is kept, and what happens to damaged files."""

import json
import logging
import math
import random
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
import torch

from specdecode_kernels.cpu import loading
from specdecode_kernels.cpu.loading import load_library
from specdecode_kernels.cpu.timed_maps import TimedMaps, one_thread
from specdecode_kernels.cpu.tuning import CHOICES, Kind, Tuning, keep, measure, read

KINDS: tuple[Kind, ...] = ("floats", "int8", "int4")

WANTED = Tuning(
    rows=6,
    panel=512,
    few_panel=32,
    streams=2,
    ahead=16384,
    level=2,
    ahead_int8=1024,
    ahead_int4=2048,
    panel_level=2,
    spread=1,
    pairs=0,
    widen=4,
    widen_int4=8,
    huge_pages=0,
)
REPORT = """
    import json, time, torch
    from dataclasses import asdict
    from specdecode_kernels.cpu import tuning
    from specdecode_kernels.cpu.loading import load_library
    measured = []
    measure = tuning.measure
    tuning.measure = lambda machine: measured.append(1) or measure(machine)
    print(json.dumps([len(measured), asdict(load_library(torch.float32).tuning), len(measured)]))
"""


@dataclass
class FakeMachine:
    """Takes longer by a fifth for every field that is not as wanted."""

    most_rows: int = 12
    maps: int = 0

    def seconds(self, tuning: Tuning, rows: int, kind: Kind) -> float:
        self.maps += 1
        wanted = asdict(WANTED)
        differing = sum(value != wanted[name] for name, value in asdict(tuning).items())
        return float(rows * 1.2**differing)


def test_the_fastest_value_of_every_field_is_chosen() -> None:
    assert measure(FakeMachine()) == WANTED


def test_the_preferred_value_stays_where_all_take_the_same() -> None:
    class Even(FakeMachine):
        def seconds(self, tuning: Tuning, rows: int, kind: Kind) -> float:
            return 1.0

    found = measure(Even())
    assert found.huge_pages == 1
    assert found.streams == 1
    assert found.widen == 1000


def test_no_tile_is_higher_than_the_processor_has() -> None:
    assert measure(FakeMachine(most_rows=4)).rows == 4


def test_real_maps_are_timed_on_evicted_weights() -> None:
    kernels = load_library(torch.float32)
    before = kernels.tuning
    try:
        with one_thread():
            machine = TimedMaps(kernels)
            times = [machine.seconds(before, rows, kind) for kind in KINDS for rows in (1, 64)]
        assert all(0 < one < many for one, many in zip(times[::2], times[1::2], strict=True))
        assert torch.get_num_threads() >= 1
    finally:
        kernels.use(before)


def test_a_kept_tuning_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "kernels.json"
    assert read(file) is None
    keep(WANTED, file)
    assert read(file) == WANTED
    assert [one.name for one in tmp_path.iterdir()] == ["kernels.json"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "Expecting value"),
        ("[1]", "must be a mapping"),
        ('{"rows": 8', "Expecting"),
        ('{"rows": 7}', "rows is 7; it must be one of"),
        ('{"height": 8}', "height"),
        ('{"panel": 10000000}', "panel is 10000000"),
        ('{"ahead": "far"}', "ahead is 'far'"),
    ],
)
def test_a_damaged_file_is_reported_and_not_used(
    content: str, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "kernels.json"
    file.write_text(content)
    with caplog.at_level(logging.WARNING):
        assert read(file) is None
    assert reason in caplog.text


def test_a_folder_that_cannot_be_written_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("not a folder")
    with caplog.at_level(logging.WARNING):
        keep(WANTED, tmp_path / "file" / "kernels.json")
    assert "measured at every start" in caplog.text


def test_drawn_tunings_are_valid_and_differ() -> None:
    rng = random.Random(0)
    drawn = {Tuning.draw(rng) for _ in range(40)}
    assert len(drawn) > 30
    for name, values in CHOICES.items():
        assert {getattr(tuning, name) for tuning in drawn} == set(values)


def test_tiles_are_no_higher_than_the_processor_has_registers_for() -> None:
    kernels = load_library(torch.float32)
    before = kernels.tuning
    try:
        kernels.use(Tuning(rows=12))
        assert kernels.tuning.rows == min(12, kernels.most_rows)
    finally:
        kernels.use(before)


def _report(tmp_path: Path, **variables: str) -> tuple[int, dict[str, int]]:
    """Load the kernels in a process of its own; return how often it measured, and the tuning."""
    environment = {"PATH": "/usr/bin:/bin", "SPECDECODE_CACHE": str(tmp_path), **variables}
    code = "\n".join(line[4:] for line in REPORT.splitlines())
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    before, tuning, after = json.loads(done.stdout.splitlines()[-1])
    return after - before, tuning


def test_kernels_are_tuned_at_the_first_start_alone(tmp_path: Path) -> None:
    assert _report(tmp_path, SPECDECODE_TUNING="default")[0] == 0
    assert not list(tmp_path.glob("cpu/*.json"))
    count, tuning = _report(tmp_path)
    assert count == 1
    (file,) = tmp_path.glob("cpu/*.json")
    assert json.loads(file.read_text()) == tuning
    assert _report(tmp_path) == (0, tuning)
    file.write_text("half of a")
    assert _report(tmp_path)[0] == 1
    assert json.loads(file.read_text()).keys() == tuning.keys()


def test_an_unknown_value_of_the_variable_names_the_known_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(loading.TUNING_VARIABLE, "fast")
    with pytest.raises(ValueError, match="'fast' is unknown: set default"):
        loading.tuning_of(load_library(torch.float32))


def test_costs_are_finite() -> None:
    machine = FakeMachine()
    measure(machine)
    assert math.isfinite(machine.maps)
    assert machine.maps < 2500  # of some tenths of a millisecond each
