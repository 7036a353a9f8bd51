"""The comparison with vLLM and SGLang: a run without a GPU, figures, verdicts, limits."""

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from bench.gpu.card import find_card
from bench.gpu.peers import command, work
from bench.gpu.peers.cells import (
    ADAPTIVE,
    BATCHES,
    CPU_LIMIT_S,
    Cell,
    Engine,
    Job,
    Load,
    Mode,
    cells_of,
    cpu_jobs,
    gpu_jobs,
)
from bench.gpu.peers.engines.own_engine import boot_document
from bench.gpu.peers.jobs.closed_loop import serve_as_they_come
from bench.gpu.peers.jobs.driver import run_jobs
from bench.gpu.peers.jobs.engine_process import RunPlace
from bench.gpu.peers.jobs.free_memory import memory_query
from bench.gpu.peers.jobs.job_process import Setup
from bench.gpu.peers.jobs.log_archive import FILE as LOGS
from bench.gpu.peers.jobs.log_archive import keep_log
from bench.gpu.peers.jobs.measuring import NoDifference, rate_between
from bench.gpu.peers.loads import Lengths, ScheduledRequest
from bench.gpu.peers.parts import PINNED
from bench.gpu.peers.recording import describe, read_recording
from bench.gpu.peers.results.aims import Aim, Quantity, Verdict, aims, judge, outcome_of
from bench.gpu.peers.results.figures import (
    FILE,
    FIRST_TOKEN_MS,
    Figure,
    FiguresError,
    FiguresFile,
    RunFacts,
    State,
)
from bench.gpu.peers.results.report import PeersResult
from bench.gpu.peers.work import WorkError, choose_work, room_of
from bench.gpu.report import DRY
from specdecode_api.boot import EngineBoot

ROOT = Path(__file__).resolve().parents[2]
FACTS = RunFacts("0123abcd", "NVIDIA H200", {"torch": "2.11.0", "vllm": "0.26.0"})
PLAIN = Cell(Engine.OWN, Mode.PLAIN, Load.DECODE, 1)


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run everything that a machine without a GPU can, and return the last line."""
    out = tmp_path_factory.mktemp("peers") / "out"
    words = [sys.executable, "bench/gpu/peers", "--dry-run", "--out", str(out)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    printed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert json.loads((out / "peers.json").read_text()) == printed
    assert {one.name for one in out.iterdir()} == {"figures.jsonl", "logs.zip", "peers.json"}
    with ZipFile(out / LOGS) as archive:
        assert len(archive.namelist()) == len(cpu_jobs())
    return printed


def test_a_run_without_a_gpu_measures_every_cell(document: dict[str, Any]) -> None:
    cells = {Cell.read(one["cell"]): one for one in document["cells"]}
    assert [*cells] == [*cells_of(cpu_jobs())]
    for one in cells.values():
        assert 0 < one["min"] <= one["median"] <= one["max"]
        assert one["repetitions"] >= 2
        assert one["tokens"] > 0
    engines = {(cell.engine, cell.mode, cell.batch) for cell in cells if cell.batch}
    assert engines == {
        (engine, mode, batch)
        for engine, mode in [
            (Engine.OWN, Mode.PLAIN),
            (Engine.OWN, Mode.FIXED_3),
            (Engine.OWN, Mode.GOODPUT),
            (Engine.TRANSFORMERS, Mode.PLAIN),
        ]
        for batch in (1, 8)
    }


def test_a_run_without_a_gpu_emits_no_wrong_token(document: dict[str, Any]) -> None:
    assert document["wrong"] == 0
    assert [one["wrong"] for one in document["cells"]] == [0] * len(document["cells"])


def test_a_run_without_a_gpu_judges_nothing(document: dict[str, Any]) -> None:
    rows = document["aims"]
    assert {one["verdict"] for one in rows.values()} == {"not_measured"}
    assert len(rows) == 8
    assert document["measured"] == DRY
    assert set(document["versions"]) >= {"torch", "transformers", "python"}
    assert document["card"]


def test_the_speculating_cells_speculate(document: dict[str, Any]) -> None:
    fixed = [one for one in document["cells"] if one["cell"]["mode"] == "fixed 3"]
    for one in fixed:
        assert set(one["facts"]["steps_by_num_steps"]) == {"3"}


def test_the_recording_is_in_the_result(document: dict[str, Any]) -> None:
    kinds = document["recording"]
    assert len(kinds) == 6
    for name in ("mean", "mean_accepted_run", "correlation"):
        assert len({one[name] for one in kinds.values()}) == 6, name
    assert sum(len(bits) for bits in read_recording().kinds.values()) == 6 * 5333


def test_plain_and_adaptive_cells_come_before_all_others() -> None:
    cells = [*cells_of(gpu_jobs())]
    first = [cell for cell in cells if cell.load is Load.DECODE][: 3 * 3 * len(BATCHES)]
    assert cells[: len(first)] == first
    assert {(cell.engine, cell.mode, cell.batch) for cell in first} == {
        (engine, mode, batch)
        for engine, adaptive in ADAPTIVE.items()
        for mode in (Mode.PLAIN, adaptive)
        for batch in BATCHES
    }
    loads = [cell.load for cell in cells]
    assert loads.index(Load.PREFILL) < loads.index(Load.VARYING)
    assert len(cells) == len({*cells})


def test_every_aim_compares_cells_that_a_run_measures() -> None:
    measured = {*cells_of(gpu_jobs())}
    for aim in aims():
        assert {aim.own, *aim.others} <= measured, aim


def figure(cell: Cell, *rates: float, wrong: int = 0) -> Figure:
    first_ms = {"p50": [1e3 / rate for rate in rates], "p99": [5e3 / rate for rate in rates]}
    facts = {FIRST_TOKEN_MS: first_ms} if cell.load is Load.HTTP else {}
    return Figure.measured(cell, rates, wrong, 100, facts)


def test_figures_are_continued_after_a_run(tmp_path: Path) -> None:
    first = FiguresFile(tmp_path, FACTS)
    first.add(Figure.not_run(PLAIN, "its process ended"))
    first.add(figure(replace(PLAIN, batch=8), 3.0, 1.0, 2.0))
    second = FiguresFile(tmp_path, FACTS)
    assert second.figures == first.figures
    assert second.is_measured(replace(PLAIN, batch=8))
    assert not second.is_measured(PLAIN)
    second.add(figure(PLAIN, 5.0))
    assert FiguresFile(tmp_path, FACTS).is_measured(PLAIN)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"commit": "ffff"}, "commit is 0123abcd there and ffff here"),
        ({"card": "NVIDIA L4"}, "card is NVIDIA H200 there and NVIDIA L4 here"),
        (
            {"versions": {"torch": "2.11.0", "vllm": "0.27.0"}},
            "vllm is 0.26.0 there and 0.27.0 here",
        ),
        ({"versions": {"torch": "2.11.0"}}, "vllm is 0.26.0 there and missing here"),
        ({"size": "tiny"}, "size is 8b there and tiny here"),
    ],
)
def test_figures_of_another_run_are_refused(
    tmp_path: Path, changed: Mapping[str, Any], message: str
) -> None:
    FiguresFile(tmp_path, FACTS)
    with pytest.raises(FiguresError, match=message) as raised:
        FiguresFile(tmp_path, replace(FACTS, **changed))
    assert f"{tmp_path / FILE}: " in str(raised.value)
    assert "name another --out" in str(raised.value)


@pytest.mark.parametrize("text", ["{", "{\n", '{"run": 3}\n', '{"what": 1}\n', "[]\n"])
def test_a_file_that_has_no_figures_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(FiguresError, match=r"not a file of figures .*; remove it"):
        FiguresFile(tmp_path, FACTS)


def test_an_unfinished_last_line_is_left_out(tmp_path: Path) -> None:
    first = FiguresFile(tmp_path, FACTS)
    first.add(figure(PLAIN, 3.0))
    whole = (tmp_path / FILE).read_text()
    (tmp_path / FILE).write_text(whole + whole.splitlines()[-1][:20])
    assert FiguresFile(tmp_path, FACTS).figures == first.figures
    assert (tmp_path / FILE).read_text() == whole


@pytest.mark.parametrize("commit", ["unknown", "0123abcd+"])
def test_figures_of_changed_files_are_not_continued(tmp_path: Path, commit: str) -> None:
    facts = replace(FACTS, commit=commit)
    FiguresFile(tmp_path, facts)
    with pytest.raises(FiguresError, match=r"whose files may have changed since; .*--out"):
        FiguresFile(tmp_path, facts)
    tiny = replace(facts, size="tiny")
    FiguresFile(tmp_path / "tiny", tiny)
    assert FiguresFile(tmp_path / "tiny", tiny).figures == {}


def test_a_cell_with_wrong_tokens_is_measured_again(tmp_path: Path) -> None:
    file = FiguresFile(tmp_path, FACTS)
    file.add(figure(PLAIN, 3.0, wrong=1))
    assert not file.is_measured(PLAIN)


AIM = Aim(
    "plain decoding",
    1.05,
    PLAIN,
    (replace(PLAIN, engine=Engine.VLLM), replace(PLAIN, engine=Engine.SGLANG)),
)


def judged(own: Figure, *others: Figure) -> tuple[Verdict, float | None, str]:
    outcome = outcome_of(AIM, {one.cell: one for one in (own, *others)}, "no time was left")
    return outcome.verdict, outcome.ratio, outcome.to or outcome.reason


def test_an_aim_is_judged_by_the_better_of_the_peers() -> None:
    vllm, sglang = (figure(cell, 99.0, 100.0, 101.0) for cell in AIM.others)
    faster = figure(AIM.others[1], 109.0, 110.0, 111.0)
    assert judged(figure(PLAIN, 106.0, 107.0), vllm, sglang)[0] is Verdict.MET
    assert judged(figure(PLAIN, 103.0, 104.0), vllm, sglang)[0] is Verdict.MISSED
    assert judged(figure(PLAIN, 90.0, 91.0), vllm, sglang)[0] is Verdict.MISSED
    found = judged(figure(PLAIN, 106.0, 107.0), vllm, faster)
    assert found == (Verdict.MISSED, round(106.5 / 110, 3), "sglang plain decode batch 1")


@pytest.mark.parametrize(
    ("rates", "verdict"),
    [
        ((98.0, 100.5, 104.0), Verdict.EQUAL),
        ((100.5, 115.0), Verdict.MET),  # ranges overlap, medians differ
        ((80.0, 101.5), Verdict.MISSED),
        ((98.0, 104.0, 105.0), Verdict.MISSED),  # one median alone is within a range
    ],
)
def test_figures_are_equal_if_each_median_is_in_the_other_range(
    rates: Sequence[float], verdict: Verdict
) -> None:
    vllm, slower = figure(AIM.others[0], 99.0, 100.0, 101.0), figure(AIM.others[1], 1.0)
    found, ratio, _ = judged(figure(PLAIN, *rates), vllm, slower)
    assert (found, ratio) == (verdict, round(statistics.median(rates) / 100, 3))


def test_an_answer_that_takes_no_longer_has_no_rate() -> None:
    lengths = Lengths(prompt=1, short=10, long=30)
    assert rate_between(lengths, 1.0, 5.0) == 5.0
    with pytest.raises(NoDifference, match=r"30 tokens took 1\.0000 s and 10 tokens 1\.0000 s"):
        rate_between(lengths, 1.0, 1.0)


def test_our_engine_runs_without_flashinfer_on_a_gpu() -> None:
    for head in ("", "eagle3-0.8"):
        boot = EngineBoot.model_validate(boot_document(Setup("checkpoint", head, [], True)))
        assert (boot.device, boot.attention_backend) == ("cuda", "triton")


def test_an_aim_without_all_its_figures_is_not_judged() -> None:
    own, vllm = figure(PLAIN, 500.0), figure(AIM.others[0], 100.0)
    verdict, ratio, why = judged(own, vllm)
    assert (verdict, ratio) == (Verdict.NOT_MEASURED, None)
    assert why == "sglang plain decode batch 1: no time was left"
    failed = Figure.not_run(AIM.others[1], "its process ended; last log line: OSError")
    assert judged(own, vllm, failed) == (
        Verdict.NOT_RUN,
        None,
        "sglang plain decode batch 1: its process ended; last log line: OSError",
    )
    bad = figure(AIM.others[1], 400.0, wrong=3)
    assert judged(own, vllm, bad)[2] == "sglang plain decode batch 1: 3 of 100 tokens are wrong"


def test_a_row_has_the_worst_verdict_of_its_cells() -> None:
    figures = {}
    for cell in cells_of(gpu_jobs()):
        rate = 100.0 if cell.engine is Engine.OWN else 80.0
        figures[cell] = figure(cell, rate, rate + 1)
    rows = judge(figures, "")
    assert rows["plain decoding"]["verdict"] is Verdict.MET
    assert rows["adaptive modes"]["verdict"] is Verdict.MET
    assert rows["varying acceptance"]["verdict"] is Verdict.MET
    assert rows["Goodput to our best fixed number"]["verdict"] is Verdict.EQUAL
    assert rows["HTTP, tokens per second"]["verdict"] is Verdict.MET
    assert rows["HTTP, p99 time to first token"]["verdict"] is Verdict.MET
    served = next(one.own for one in aims() if one.of is Quantity.FIRST_TOKEN_P99)
    late = judge(figures | {served: figure(served, 60.0)}, "")["HTTP, p99 time to first token"]
    (cell,) = late["cells"]
    assert (late["verdict"], cell["ratio"]) == (Verdict.MISSED, round((5 / 60) / (5 / 80.5), 3))
    slow = replace(PLAIN, batch=64)
    rows = judge(figures | {slow: figure(slow, 60.0)}, "")
    assert rows["plain decoding"]["verdict"] is Verdict.MISSED
    assert [one["verdict"] for one in rows["plain decoding"]["cells"]] == [
        "met",
        "met",
        "missed",
        "met",
    ]


def test_a_lost_cell_is_in_the_table() -> None:
    figures = {PLAIN: figure(PLAIN, 60.0), AIM.others[0]: Figure.not_run(AIM.others[0], "no part")}
    table = PeersResult(FACTS, 1.0, figures, {}, is_gpu=True).table()
    assert "specdecode plain decode batch 1" in table
    assert "not run: no part" in table


def place(tmp_path: Path, **more: Any) -> RunPlace:
    paths = {Engine.OWN: [path for path in sys.path if path]}
    logs, archive = tmp_path / "logs", tmp_path / LOGS
    kept = RunPlace(ROOT, tmp_path / "none", logs, archive, False, paths, {}, PINNED, {})
    return replace(kept, **more)


def run(jobs: list[Job], where: RunPlace, out: Path, seconds: float) -> dict[Cell, Figure]:
    figures = FiguresFile(out, FACTS)
    lines = [*run_jobs(jobs, where, figures, time.monotonic() + seconds)]
    assert lines
    return figures.figures


def test_an_engine_that_does_not_start_costs_only_its_cells(tmp_path: Path) -> None:
    cells = [replace(PLAIN, engine=engine) for engine in (Engine.VLLM, Engine.SGLANG, Engine.OWN)]
    jobs = [Job(cell.engine, (cell,), CPU_LIMIT_S) for cell in cells]
    unavailable = {Engine.VLLM: "parts/vllm.tar.xz.01 is missing"}
    figures = run(jobs, place(tmp_path, unavailable=unavailable), tmp_path, CPU_LIMIT_S)
    assert {one.state for one in figures.values()} == {State.NOT_RUN}
    assert figures[cells[0]].reason == "parts/vllm.tar.xz.01 is missing"
    assert figures[cells[1]].reason == "ModuleNotFoundError: No module named 'sglang'"
    assert str(tmp_path / "none") in figures[cells[2]].reason


def test_an_engine_that_dies_leaves_its_last_log_line(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('libcudart.so.13: not found')")
    where = place(tmp_path, paths={Engine.OWN: [str(tmp_path)]})
    figures = run([Job(Engine.OWN, (PLAIN,), CPU_LIMIT_S)], where, tmp_path, CPU_LIMIT_S)
    wanted = "its process ended; last log line: libcudart.so.13: not found"
    assert figures[PLAIN].reason == wanted


def test_an_engine_that_hangs_is_ended_at_its_limit(tmp_path: Path) -> None:
    figures = run([Job(Engine.OWN, (PLAIN,), 0.01)], place(tmp_path), tmp_path, CPU_LIMIT_S)
    assert figures[PLAIN].reason == "ended after 0.01 s; last log line: the log is empty"


DRIVER = """
import sys, time
from pathlib import Path
from bench.gpu.peers.cells import Cell, Engine, Job, Load, Mode
from bench.gpu.peers.jobs.driver import run_jobs
from bench.gpu.peers.jobs.engine_process import RunPlace
from bench.gpu.peers.parts import PINNED
from bench.gpu.peers.results.figures import FiguresFile, RunFacts
folder, root = Path(sys.argv[1]), Path(sys.argv[2])
cell = Cell(Engine.VLLM, Mode.PLAIN, Load.DECODE, 1)
paths = {Engine.VLLM: [str(folder), str(root)]}
place = RunPlace(root, folder, folder / "logs", folder / "logs.zip", False, paths, {}, PINNED, {})
file = FiguresFile(folder, RunFacts("0123abcd", "card", {}))
print(*run_jobs([Job(Engine.VLLM, (cell,), 600.0)], place, file, time.monotonic() + 600.0))
"""
HANGING = """
import os, signal, threading
from pathlib import Path
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
with (Path(__file__).parent / "pids").open("a") as file:
    file.write(f"{os.getpid()}\\n")
threading.Event().wait()
"""


def is_running(pid: int) -> bool:
    """Whether a process runs; one that nobody has reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda one: one.name)
def test_an_engine_that_hangs_ends_with_its_killed_driver(
    tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "vllm.py").write_text(HANGING)
    pids, words = tmp_path / "pids", [sys.executable, "-c", DRIVER, str(tmp_path), str(ROOT)]
    with subprocess.Popen(words, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}) as driver:
        while not pids.exists() or len(pids.read_text().split()) < 2:
            assert driver.poll() is None
            time.sleep(0.01)
        driver.send_signal(number)
        assert driver.wait() == -number
    while any(is_running(int(pid)) for pid in pids.read_text().split()):
        time.sleep(0.01)


SERVING = """
import os
os.environ["VLLM_USE_FLASHINFER_SAMPLER"]
__version__ = "0.25.1"
SamplingParams = object
class LLM:
    def __init__(self, **arguments): pass
"""


def test_an_engine_of_another_version_is_refused(tmp_path: Path) -> None:
    for folder in ("vllm", "vllm/v1", "vllm/v1/engine"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text(SERVING if folder == "vllm" else "")
    (tmp_path / "vllm/v1/engine/async_llm.py").write_text("AsyncLLM = object")
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "cycle.json").write_text('{"order": [0, 1]}')
    cell = replace(PLAIN, engine=Engine.VLLM)
    where = place(tmp_path, paths={Engine.VLLM: [str(tmp_path), str(ROOT)]})
    figures = run([Job(Engine.VLLM, (cell,), CPU_LIMIT_S)], where, tmp_path, CPU_LIMIT_S)
    wanted = "vllm is 0.25.1, pinned is 0.26.0; run `make bench-peers-pack`"
    assert (figures[cell].state, figures[cell].reason) == (State.NOT_RUN, wanted)


def test_the_version_of_an_engine_is_in_its_figures(document: dict[str, Any]) -> None:
    for one in document["cells"]:
        assert one["facts"]["version"]
        assert one["facts"]["torch"].startswith(document["versions"]["torch"])


def test_the_memory_of_the_first_visible_gpu_is_read() -> None:
    assert memory_query({"CUDA_VISIBLE_DEVICES": "3,1"})[-1] == "--id=3"
    assert memory_query({}) == memory_query({"CUDA_VISIBLE_DEVICES": ""})
    assert not any("--id" in word for word in memory_query({}))


def test_what_could_not_be_run_comes_last(tmp_path: Path) -> None:
    cells = [replace(PLAIN, engine=engine) for engine in (Engine.VLLM, Engine.SGLANG)]
    FiguresFile(tmp_path, FACTS).add(Figure.not_run(cells[0], "its process ended"))
    jobs = [Job(cell.engine, (cell,), CPU_LIMIT_S) for cell in cells]
    where = place(tmp_path, unavailable=dict.fromkeys(Engine, "no part"))
    lines = [*run_jobs(jobs, where, FiguresFile(tmp_path, FACTS), time.monotonic() + CPU_LIMIT_S)]
    assert [line.split()[0] for line in lines if ": not run" in line] == ["sglang", "vllm"]


def test_a_run_is_complete_unless_time_lacked(tmp_path: Path) -> None:
    file, jobs = FiguresFile(tmp_path, FACTS), gpu_jobs()
    cells = [*cells_of(jobs)]
    for cell in cells[:-1]:
        file.add(figure(cell, 1.0))
    assert not command.is_complete(jobs, file, is_gpu=True)
    file.add(Figure.not_run(cells[-1], "its process ended"))
    assert command.is_complete(jobs, file, is_gpu=True)
    assert not command.is_complete(jobs, file, is_gpu=False)
    for cell in cells:
        if cell.engine is Engine.VLLM:
            file.add(Figure.not_run(cell, "no part"))
    assert not command.is_complete(jobs, file, is_gpu=True)


def test_a_damaged_archive_of_logs_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "one.log").write_text("text")
    for _ in range(2):
        keep_log(tmp_path / "one.log", tmp_path / LOGS)
    with ZipFile(tmp_path / LOGS) as archive:
        assert archive.namelist() == ["000-one.log", "001-one.log"]
        assert archive.read("001-one.log") == b"text"
    (tmp_path / LOGS).write_text("cut off")
    keep_log(tmp_path / "one.log", tmp_path / LOGS)
    with ZipFile(tmp_path / LOGS) as archive:
        assert archive.namelist() == ["000-one.log"]


def test_the_checkpoint_is_never_below_the_results(tmp_path: Path) -> None:
    with pytest.raises(WorkError, match=r"out/work is below .*; name another folder with --work"):
        choose_work(tmp_path / "out" / "work", tmp_path / "out")


def test_a_folder_without_room_is_refused_with_both_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "shard").write_bytes(bytes(1 << 20))
    room = room_of(tmp_path / "work")
    assert room_of(tmp_path / "missing") < room
    monkeypatch.setattr(work, "NEEDED_BYTES", 1 << 50)
    with pytest.raises(WorkError, match=r"GiB; checkpoint and peers take 1048576 GiB; .*--work"):
        choose_work(tmp_path / "work", tmp_path / "out")
    with pytest.raises(WorkError, match="bench-peers has room for"):
        choose_work(None, tmp_path / "out", tmp_path)


@pytest.mark.parametrize("name", ["--out", "--work"])
def test_a_file_in_place_of_a_folder_is_refused(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit):
        command.Options.parse([name, str(tmp_path / "file")])
    assert f"{name} is {tmp_path / 'file'}, which is a file; name a folder" in (
        capsys.readouterr().err
    )


def test_why_there_is_no_gpu_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = find_card()
    assert (found.name, bool(found.reason)) == ("", True)


def test_cells_that_do_not_fit_are_left_for_a_later_run(tmp_path: Path) -> None:
    job = Job(Engine.OWN, (PLAIN,), CPU_LIMIT_S)
    assert run([job], place(tmp_path), tmp_path, 1.0) == {}


def test_a_run_on_other_figures_ends_with_the_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    FiguresFile(tmp_path, FACTS)
    assert command.main(["--dry-run", "--out", str(tmp_path)], time.monotonic()) == 1
    assert "card is NVIDIA H200 there and " in capsys.readouterr().err


def test_a_run_that_is_terminated_ends_as_interrupted(tmp_path: Path) -> None:
    words = [sys.executable, "bench/gpu/peers", "--dry-run", "--out", str(tmp_path)]
    with subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout is not None
        assert "results go to" in started.stdout.readline()
        started.terminate()
        assert "interrupted" in started.communicate()[1]
        assert started.returncode == 130


async def test_requests_start_as_those_before_them_end() -> None:
    levels = (1, 1, 4, 4, 4, 4, 2, 2)
    requests = [ScheduledRequest((number,), 1, level, 0) for number, level in enumerate(levels)]
    running, seen = set[int](), list[int]()

    async def answer(request: ScheduledRequest) -> list[int]:
        running.add(request.prompt[0])
        seen.append(len(running))
        await asyncio.sleep(0)
        running.discard(request.prompt[0])
        return [request.prompt[0]]

    assert await serve_as_they_come(requests, answer) == [[number] for number in range(8)]
    assert max(seen[:2]) == 1
    assert all(count <= level for count, level in zip(seen, levels, strict=True))
    assert max(seen) > 1


def test_a_recording_is_described() -> None:
    found = describe((1, 1, 1, 0, 1, 0, 0, 1))
    assert found == {
        "tokens": 8,
        "mean": 0.625,
        "mean_accepted_run": round(5 / 3, 3),
        "longest_accepted_run": 3,
        "mean_rejected_run": 1.5,
        "longest_rejected_run": 2,
        "correlation": -0.1667,
    }
    assert describe((1, 1, 1))["correlation"] == 0.0


def test_a_cycle_has_a_part_per_kind() -> None:
    recording = read_recording()
    bits = recording.agreement(32000)
    kinds = [*recording.kinds.values()]
    assert bits == (*[bit for one in kinds for bit in one], 1, 1)
    with pytest.raises(ValueError, match="are recorded"):
        recording.agreement(64000)
