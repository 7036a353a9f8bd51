"""The GPU script: its dry run runs every line, and whatever happens the results are whole."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch

from bench.gpu import carried, carry, targets
from bench.gpu.command import RESULTS, main
from bench.gpu.context import Context
from bench.gpu.engines import STRONG, WEAK, Engines
from bench.gpu.gpu_queue.entries import read_queue
from bench.gpu.limits import Floors, Traffic, mixture_seconds, step_seconds
from bench.gpu.random_weights import RandomStore
from bench.gpu.record import CannotMeasure, Row, SectionRecord, State, Target
from bench.gpu.report import DRY, Report, Run
from bench.gpu.runner import Section, run_sections
from bench.gpu.scale import DRY as DRY_SCALE
from bench.gpu.scale import REAL
from bench.gpu.sections import SECTIONS, block_draft, parity
from bench.gpu.sections.waits import find_wait
from bench.gpu.shadow import shadow_device
from bench.gpu.steps import Load
from bench.gpu.stopwatch import BusySpan, covered
from specdecode_engine.batch.request import Output
from specdecode_engine.model.target.llama import Llama

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = [entry.command for entry in read_queue(ROOT)]
QUEUED = {name for one in COMMANDS if "--only" in one for name in one[2].split(",")}
"""Sections that the dry run of the queue runs (`test_gpu_queue.py`)."""
CHOSEN = [one.name for one in SECTIONS if one.name not in QUEUED - {"floors", "parity"}]
COMMAND = [sys.executable, str(ROOT / "bench" / "gpu"), "--dry-run", "--carry", "nothing"]
CPU = torch.device("cpu")


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def read(folder: Path) -> dict[str, Any]:
    (file,) = folder.glob("*.json")
    document = json.loads(file.read_text())
    assert isinstance(document, dict)
    return document


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("results")
    done = subprocess.run(
        [*COMMAND, "--only", ",".join(CHOSEN), "--out", str(folder)],
        capture_output=True, text=True, env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout


def test_a_dry_run_runs_what_is_not_in_the_queue(dry_run: tuple[Path, str]) -> None:
    document = read(dry_run[0])
    assert document["state"] == "complete"
    sections = {one["name"]: one for one in document["sections"]}
    assert list(sections) == CHOSEN
    assert {*CHOSEN} | QUEUED == {section.name for section in SECTIONS}
    compiled = sections.pop("compiled")
    assert compiled["reason"] == "a shadow device compiles nothing"
    for section in sections.values():
        assert section["state"] == "done", section["reason"]
        assert section["rows"]


def test_a_run_begins_with_backends_and_with_steady_steps_that_may_not_wait(
    dry_run: tuple[Path, str],
) -> None:
    waits = read(dry_run[0])["sections"][0]
    rows = {row["metric"]: row for row in waits["rows"]}
    assert (rows["target, prefill"]["unit"], rows["draft, draft"]["unit"]) == (
        "flashinfer",
        "triton",
    )
    steady = {name: row for name, row in rows.items() if name.startswith("waits in steady steps")}
    assert len(steady) == len(DRY_SCALE.depths) * len(DRY_SCALE.batches)
    assert {row["measured"] for row in steady.values()} == {0.0}


def test_a_step_that_waits_is_found_with_torchs_error(tmp_path: Path) -> None:
    with shadow_device():
        device = torch.device("cuda")
        core = Engines(device, DRY_SCALE, tmp_path).with_overlap(1)
        own_step = core.step

        def step() -> list[Output]:
            torch.zeros(1, device=device).item()
            return own_step()

        core.step = step  # type: ignore[method-assign]
        error = find_wait(core, Load(1, 8, 2), 1)
    assert error is not None
    assert error.startswith("called a synchronizing CUDA operation")


def test_a_dry_run_marks_every_number_as_not_measured(dry_run: tuple[Path, str]) -> None:
    folder, printed = dry_run
    document = read(folder)
    assert document["is_dry"]
    assert document["measured"] == DRY
    rows = [row for section in document["sections"] for row in section["rows"]]
    assert not any(row["is_measurement"] for row in rows)
    assert all(row["is_met"] is None for row in rows)
    (markdown,) = folder.glob("*.md")
    tables = [line for line in markdown.read_text().splitlines() if line.startswith("| metric")]
    assert len(tables) == sum(bool(section["rows"]) for section in document["sections"])
    assert all(DRY in line for line in tables)
    assert printed.startswith(DRY)


def test_a_dry_run_finds_kernels_equal_and_speculation_lossless(dry_run: tuple[Path, str]) -> None:
    sections = {one["name"]: one for one in read(dry_run[0])["sections"]}
    assert all(row["measured"] <= 1 for row in sections["parity"]["rows"])
    assert [row["measured"] for row in sections["lossless"]["rows"]] == [0]
    names = {row["metric"] for row in sections["parity"]["rows"]}
    assert {"rms_norm", "compact_kv", "sample", "store_kv", "verify_tree"} <= names
    assert {"experts", "linear, int4", "gated_delta, trees", "keep_drafted"} <= names
    assert {"linear, mxfp4", "linear, nvfp4", "experts, mxfp4", "experts, nvfp4"} <= names
    assert any("latents" in name for name in names)


def test_a_kill_half_way_leaves_whole_files(tmp_path: Path) -> None:
    chosen = ["--only", "floors,decode,lossless", "--out", str(tmp_path)]
    with subprocess.Popen(
        [*COMMAND, *chosen], stdout=subprocess.PIPE, text=True, env=environment()
    ) as started:
        assert started.stdout is not None
        for line in started.stdout:
            if line.startswith("done"):
                break
        started.kill()
    document = read(tmp_path)
    assert document["state"] == "running lossless"
    assert [one["name"] for one in document["sections"]] == ["floors"]
    (markdown,) = tmp_path.glob("*.md")
    assert "What the machine allows" in markdown.read_text()


def test_the_deadline_ends_what_does_not_end(tmp_path: Path) -> None:
    script = tmp_path / "hangs.py"
    script.write_text(
        "import signal, sys, time\n"
        f"sys.path[:0] = {[str(ROOT / f) for f in ('.', 'crds/src', 'kernels/src')]}\n"
        f"sys.path.insert(0, {str(ROOT / 'engine/src')!r})\n"
        "from bench.gpu import sections, runner, command\n"
        "def hang(context):\n"
        "    signal.setitimer(signal.ITIMER_REAL, 0)  # as deaf as compiled code\n"
        "    while True: time.sleep(0.01)\n"
        "    yield\n"
        "sections.SECTIONS = (runner.Section('hang', 'Hangs', hang, 1, 0),)\n"
        "began_s = time.monotonic()\n"
        "command.SPARE_S = 1\n"
        "options = ['--dry-run', '--carry', 'nothing', '--seconds', '12', '--out', sys.argv[1]]\n"
        "sys.exit(command.main(options, began_s))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "out")], env=environment(), timeout=60
    )
    assert done.returncode == 3
    assert read(tmp_path / "out")["state"] == "cut off in hang"


def test_a_section_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    chosen = ["--only", "floors,flors,decoded", "--out", str(tmp_path)]
    done = subprocess.run([*COMMAND, *chosen], capture_output=True, text=True, env=environment())
    assert done.returncode == 1
    assert "--only decoded, flors: no section has this name" in done.stderr


def test_a_kernel_that_raises_is_as_wrong_as_can_be() -> None:
    def compare() -> float:
        raise RuntimeError("illegal address")

    row = parity._row("attend", compare)
    assert (row.measured, row.is_met) == (float("inf"), False)
    assert "RuntimeError: illegal address" in row.note


def test_rates_follow_from_acceptance_and_times_of_steps() -> None:
    assert block_draft.expected_tokens(0.5, 3) == 1.875
    assert block_draft.best_rate({1: 1.0, 3: 1.2}, 0.5) == (1.875 / 1.2, 3)
    assert block_draft.best_rate({1: 1.0, 3: 2.0}, 0.5) == (1.5, 1)


def test_a_mixture_reads_the_experts_that_rows_choose() -> None:
    floors = Floors(memory_bytes_per_s=3.0e12, gemm_flop_per_s=798e12, launch_us=3)
    size, mixture = REAL.mixture_model, REAL.mixture

    def read_bytes(rows: int) -> float:
        return mixture_seconds(size, mixture, floors, rows, 0) * floors.memory_bytes_per_s

    expert = 2 * 3 * 2048 * 768
    assert read_bytes(1) == pytest.approx(6.1e9, rel=0.02)  # 3.3 billion, the embedding left out
    assert read_bytes(2) - read_bytes(1) == pytest.approx(48 * 7.5 * expert)
    assert read_bytes(10_000) - read_bytes(1) == pytest.approx(48 * 120 * expert)


def test_results_of_a_dry_run_cannot_go_where_measured_ones_are() -> None:
    options = ["--dry-run", "--carry", "nothing", "--out", str(RESULTS)]
    with pytest.raises(SystemExit, match="a dry run measures nothing"):
        main(options, time.monotonic())


RunSections = Callable[..., tuple[SectionRecord, ...]]


@pytest.fixture
def run(tmp_path: Path) -> RunSections:
    context = Context(CPU, True, DRY_SCALE, Engines(CPU, DRY_SCALE, tmp_path))

    def run(*sections: Section, seconds: float = 60) -> tuple[SectionRecord, ...]:
        ends_s = context.clock() + seconds
        return run_sections(sections, context, ends_s, lambda records, name: None)

    return run


def one_row(context: Context) -> Iterator[Row]:
    yield Row("one", 1.0, "s")


def raises(context: Context) -> Iterator[Row]:
    yield Row("before", 1.0, "s")
    raise ZeroDivisionError("of a kind")


def never_ends(context: Context) -> Iterator[Row]:
    yield Row("before", 1.0, "s")
    while True:
        time.sleep(0.001)


def cannot(context: Context) -> Iterator[Row]:
    raise CannotMeasure("there is none here")
    yield


def test_a_section_that_raises_is_recorded_and_the_next_one_runs(run: RunSections) -> None:
    failed, after = run(Section("a", "A", raises, 9, 0), Section("b", "B", one_row, 9, 0))
    assert (failed.state, [row.metric for row in failed.rows]) == (State.FAILED, ["before"])
    assert "ZeroDivisionError: of a kind" in failed.reason
    assert "in raises" in failed.reason
    assert after.state is State.DONE


def test_a_section_beyond_its_time_keeps_what_it_measured(run: RunSections) -> None:
    cut, after = run(Section("a", "A", never_ends, 0.2, 0), Section("b", "B", one_row, 9, 0))
    assert (cut.state, [row.metric for row in cut.rows]) == (State.CUT, ["before"])
    assert cut.reason == "cut off after 0.2 s"
    assert 0.2 <= cut.seconds < 5
    assert after.state is State.DONE


def test_a_section_that_no_longer_fits_is_skipped(run: RunSections) -> None:
    skipped, after = run(
        Section("a", "A", one_row, 99, least_s=50), Section("b", "B", one_row, 9, 1), seconds=10
    )
    assert (skipped.state, skipped.rows) == (State.SKIPPED, ())
    assert "10 s were left of the 50 s that it needs" in skipped.reason
    assert after.state is State.DONE


def test_a_section_without_what_it_needs_is_skipped_with_the_reason(run: RunSections) -> None:
    (skipped,) = run(Section("a", "A", cannot, 9, 0))
    assert (skipped.state, skipped.reason) == (State.SKIPPED, "there is none here")


def test_an_engine_that_could_not_be_built_is_not_tried_again(tmp_path: Path) -> None:
    engines = Engines(CPU, DRY_SCALE, tmp_path)
    (tmp_path / "target" / "config.json").unlink()
    with pytest.raises(Exception, match=r"config\.json"):
        engines.adaptive()
    with pytest.raises(CannotMeasure, match="adaptive engine could not be built"):
        engines.adaptive()


def test_random_weights_are_the_same_by_name_and_scaled_behind_the_first_layer() -> None:
    shape = (8, 16)
    names = [f"model.layers.{layer}.mlp.down_proj.weight" for layer in (0, 1)]
    stores = [RandomStore(epsilon) for epsilon in (1.0, 0.5)]
    for store in stores:
        store.check(dict.fromkeys(names, shape), {})
    whole, half = ([drawn(store, name, shape) for name in names] for store in stores)
    assert torch.equal(whole[0], half[0])
    assert torch.allclose(whole[1] * 0.5, half[1])
    assert not torch.equal(whole[0], whole[1])


def drawn(store: RandomStore, name: str, shape: tuple[int, int]) -> torch.Tensor:
    tensor = torch.empty(shape)
    store.read(name, tensor)
    return tensor


def down_weight(layer) -> torch.Tensor:
    weight = layer.mlp.down.weight
    assert isinstance(weight, torch.Tensor), "packed"
    return weight


def test_the_dial_of_a_built_engine_is_turned_in_place(tmp_path: Path) -> None:
    engines = Engines(CPU, DRY_SCALE, tmp_path)
    target = engines.adaptive().context.target
    assert isinstance(target, Llama)
    layers = target.layers
    before = [down_weight(layer).clone() for layer in layers]
    places = [down_weight(layer).data_ptr() for layer in layers]
    engines.agree(WEAK)
    assert places == [down_weight(layer).data_ptr() for layer in layers]
    assert torch.equal(down_weight(layers[0]), before[0])
    assert torch.allclose(down_weight(layers[1]), before[1] * (WEAK / STRONG))


def test_measured_rows_are_held_against_their_targets(tmp_path: Path) -> None:
    rows = (
        Row.of_time("fast", 2.0, "ms", 1.6, Target("≥", 0.75, "ratio")),
        Row.of_time("slow", 2.0, "ms", 1.0, Target("≥", 0.75, "ratio")),
        Row("absent", None, "", target=Target("≤", 1), note="not there"),
        Row("wrong", float("inf"), "", target=Target("≤", 1)),
    )
    assert [row.is_met for row in rows] == [True, False, None, False]
    report = Report(Run("NVIDIA H100 80GB HBM3", "2026-01-02", False, {}, "abc"), tmp_path)
    report.write((SectionRecord("a", "A", State.DONE, rows),), "complete")
    assert report.json_file.name == "gpu-nvidia-h100-80gb-hbm3-2026-01-02.json"
    (section,) = read(tmp_path)["sections"]
    assert [row["measured"] for row in section["rows"]] == [2.0, 2.0, None, "inf"]
    lines = report.markdown_file.read_text().splitlines()
    assert "| fast | 2 ms | 1.6 | 0.8 | ratio ≥ 0.75 |  | yes |" in lines
    assert "| slow | 2 ms | 1 | 0.5 | ratio ≥ 0.75 |  | NO |" in lines
    assert "| absent | not measured |  |  | ≤ 1 | not there |  |" in lines
    assert sorted(file.suffix for file in tmp_path.iterdir()) == [".json", ".md"]


def test_floors_are_those_of_the_published_shape() -> None:
    floors = Floors(memory_bytes_per_s=3.0e12, gemm_flop_per_s=798e12, launch_us=3)
    target, draft = Traffic.of(REAL.model, 32), Traffic.of(REAL.model, 1)
    assert target.weight_bytes == pytest.approx(15.0e9, rel=0.01)
    assert target.kv_bytes_per_token == 131_072
    assert target.seconds(floors, 1, 0) == pytest.approx(5.0e-3, rel=0.01)
    many = target.seconds(floors, 1000, 0)
    assert many == pytest.approx(2 * target.parameters * 1000 / 798e12)
    whole = step_seconds(target, draft, floors, 1, 3, 0)
    assert whole == pytest.approx(target.weight_bytes / 3e12 + 3 * draft.weight_bytes / 3e12)


def test_the_busy_time_counts_what_overlaps_once() -> None:
    spans = [BusySpan(0, 2), BusySpan(1, 3), BusySpan(5, 6), BusySpan(5.5, 5.6)]
    assert covered(spans) == pytest.approx(4)
    assert covered([]) == 0


def test_the_sections_fit_into_the_nine_minutes_that_a_run_has() -> None:
    assert sum(section.least_s for section in SECTIONS) < 530
    assert all(section.least_s <= section.budget_s for section in SECTIONS)


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("pydantic-2.14.3-py3-none-any.whl", True),
        ("pydantic_core-2.50.4-cp312-cp312-manylinux2014_x86_64.whl", True),
        ("pydantic_core-2.50.4-cp311-cp311-manylinux2014_x86_64.whl", False),
        ("llguidance-1.9.1-cp39-abi3-manylinux_2_31_x86_64.whl", True),
        ("llguidance-1.9.1-cp313-abi3-manylinux_2_31_x86_64.whl", False),
        ("pydantic_core-2.50.4-cp312-cp312-manylinux2014_s390x.whl", False),
    ],
)
def test_only_wheels_for_the_interpreter_are_used(name: str, fits: bool) -> None:
    assert carried.fits(name, (3, 12)) is fits


def test_what_is_carried_can_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ZipFile(tmp_path / "travelled-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("travelled.py", "WHERE = 'carried'")
    monkeypatch.setattr(carried, "PEERS", ("travelled",))
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert carried.use_carried(tmp_path) == ["travelled-1-py3-none-any.whl"]
    from travelled import WHERE  # type: ignore[import-not-found]

    assert WHERE == "carried"
    assert carried.use_carried(tmp_path) == []


def test_what_is_fetched_is_what_is_locked() -> None:
    wanted = (*carry.LOCKED, *carry.PEERS)
    names = carry.locked_versions(wanted)
    assert [name.partition("==")[0] for name in names] == list(wanted)
    assert all(name.partition("==")[2] for name in names)


def test_the_docs_name_every_target() -> None:
    text = (ROOT / "docs" / "gpu.md").read_text()
    for number in range(1, 10):
        (row,) = [line for line in text.splitlines() if line.startswith(f"| G{number} ")]
        assert row.count("|") == 6
    for value in (
        targets.DECODE_SHARE, targets.STEP_SHARE, targets.VERIFY_OVER_DECODE,
        targets.TO_BEST_STATIC, targets.TO_NO_SPECULATION, targets.CAPTURE_S, targets.SWAP_US,
        targets.KERNEL_US, targets.FEWER_LAUNCHES, targets.IDLE_SHARE, targets.OVERLAP_GAIN,
    ):  # fmt: skip
        assert f"{value.sign} {value.value:g}" in text
