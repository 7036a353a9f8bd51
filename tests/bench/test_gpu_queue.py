"""The queue for a GPU: entries, what is due, runs in which entries end alone, and collecting."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.gpu.checkout import MANIFEST, MARKS, commit_of, write_manifest
from bench.gpu.gpu_queue import command
from bench.gpu.gpu_queue.bases import base_folder, carry_base
from bench.gpu.gpu_queue.collecting import collect
from bench.gpu.gpu_queue.command import MAX_MINUTES, Options, main
from bench.gpu.gpu_queue.entries import (
    FILE,
    MAX_SECONDS,
    Entry,
    QueueError,
    limit_of,
    next_entry,
    read_queue,
)
from bench.gpu.gpu_queue.marks import Mark, read_marks, reason_due, reasons_due
from bench.gpu.gpu_queue.result import EntryResult, Status, read_results
from bench.gpu.gpu_queue.running import Place, run_queue
from bench.gpu.report import DRY

ROOT = Path(__file__).resolve().parents[2]
CARD = "NVIDIA H200"
REPORTS = """
import json, sys
out = sys.argv[sys.argv.index("--out") + 1]
with open(f"{out}/report.json", "w") as file:
    json.dump({"arguments": sys.argv[1:]}, file)
"""
RAISES = "raise ZeroDivisionError('of a kind')\n"
HANGS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
with open(sys.argv[1], "a") as file:
    file.write(f"{os.getpid()}\\n")
while True:
    time.sleep(1)
"""
RUNS_OUT = f"""
import sys
sys.path[0:0] = [{str(ROOT)!r}]
import torch
from tests.shadow_cuda.active import shadow_cuda
with shadow_cuda(1 << 20):
    torch.empty(1 << 30, device="cuda")
"""
KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n"
PROGRAMS = {
    "reports": REPORTS, "raises": RAISES, "hangs": HANGS, "out": RUNS_OUT, "killed": KILLED,
    "silent": "",
}  # fmt: skip


def git(root: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    words = ("git", "-C", str(root), *identity, *arguments)
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def toml(name: str, more: str = "") -> str:
    return (
        f'[[entry]]\nname = "{name}"\ndecides = "d"\ncommand = ["programs/reports.py"]\n'
        f'seconds = 5\nfiles = ["kernels/{name}.py"]\n{more}\n'
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with a queue of two entries, and programs that end in every way."""
    root = tmp_path / "checkout"
    for folder in ("programs", "kernels", "bench/gpu", "bench/results"):
        (root / folder).mkdir(parents=True)
    for name, text in PROGRAMS.items():
        (root / "programs" / f"{name}.py").write_text(text)
    for name in ("first", "second"):
        (root / "kernels" / f"{name}.py").write_text(f"{name} = 1\n")
    (root / FILE).write_text(toml("first") + toml("second"))
    (root / MARKS).write_text("{}\n")
    git(root, "init", "--quiet")
    git(root, "add", "-A")
    git(root, "commit", "--quiet", "-m", "Begin")
    return root


def place(root: Path, is_dry: bool = False) -> Place:
    carry, out = root.parent / "carry", root.parent / "out"
    return Place(root, out, carry, carry, is_dry, CARD, commit_of(root, carry), {"torch": "2.11.0"})


def entry(name: str, program: str, *arguments: str, limit: float = 60) -> Entry:
    return Entry(
        name=name, decides="d", command=[f"programs/{program}.py", *arguments], seconds=1.0,
        limit=limit, files=["kernels/first.py"],
    )  # fmt: skip


def run(root: Path, *entries: Entry) -> dict[str, EntryResult]:
    """Run entries, and read back what was written."""
    yielded = list(run_queue(entries, place(root), ends_s=1e9, clock=lambda: 0.0))
    written = {one.entry: one for one in read_results(place(root).out).values()}
    assert [one.entry for one in yielded] == [one.name for one in entries]
    assert {one.entry: one for one in yielded} == written
    return written


def test_an_entry_that_raises_ends_alone(root: Path) -> None:
    results = run(root, entry("a", "raises"), entry("b", "reports"))
    assert (results["a"].status, results["a"].exit_code) == (Status.FAILED, 1)
    assert results["a"].reason == "exit status 1: ZeroDivisionError: of a kind"
    assert "Traceback" in results["a"].tail
    assert results["b"].status is Status.DONE


def test_an_entry_that_hangs_ends_alone_with_its_children(root: Path, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.touch()
    results = run(root, entry("a", "hangs", str(pids), limit=1), entry("b", "reports"))
    assert (results["a"].status, results["a"].exit_code) == (Status.TIMED_OUT, None)
    assert results["a"].reason == "ended after its limit of 1 s"
    assert results["b"].status is Status.DONE
    assert not any(is_running(int(pid)) for pid in pids.read_text().split())


def is_running(pid: int) -> bool:
    """Whether a process runs; one that nobody has reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_an_entry_that_runs_out_of_memory_ends_alone(root: Path) -> None:
    results = run(root, entry("a", "out"), entry("b", "killed"), entry("c", "reports"))
    assert results["a"].status is Status.FAILED
    assert "OutOfMemoryError" in results["a"].reason
    assert results["b"].status is Status.KILLED
    assert results["b"].reason == "ended by SIGKILL; the machine's memory may have run out"
    assert results["c"].status is Status.DONE


def test_an_entry_is_the_first_to_end_if_memory_runs_out(root: Path) -> None:
    (root / "programs" / "score.py").write_text(
        "import time\nfrom pathlib import Path\n"
        "while (score := Path('/proc/self/oom_score_adj').read_text()) != '1000\\n':\n"
        "    time.sleep(0.01)\n" + REPORTS
    )
    assert run(root, entry("a", "score"))["a"].status is Status.DONE


def test_a_command_gets_its_time_and_folders(root: Path) -> None:
    result = run(root, entry("a", "reports", "--only", "floors", limit=60))["a"]
    arguments = result.reports["new"]["arguments"]
    assert arguments[:4] == ["--only", "floors", "--seconds", "57.0"]
    assert arguments[-2:] == ["--carry", str(place(root).carry)]
    assert result.commit == git(root, "rev-parse", "HEAD")
    assert (result.card, result.versions) == (CARD, {"torch": "2.11.0"})


def test_an_entry_without_a_report_is_not_done(root: Path) -> None:
    result = run(root, entry("a", "silent"))["a"]
    assert (result.status, result.reason) == (Status.FAILED, "its command wrote no report")


def test_an_interrupted_run_keeps_its_results(root: Path, tmp_path: Path) -> None:
    pids, out = tmp_path / "pids", tmp_path / "out"
    script = tmp_path / "run.py"
    script.write_text(
        f"import sys\nfrom pathlib import Path\nsys.path[0] = {str(ROOT)!r}\n"
        "from bench.gpu.gpu_queue.entries import Entry\n"
        "from bench.gpu.gpu_queue.running import Place, run_queue\n"
        f"root, out = Path({str(root)!r}), Path({str(out)!r})\n"
        "place = Place(root, out, out, out, False, 'card', 'commit', {})\n"
        "more = dict(decides='d', seconds=1.0, files=['kernels/first.py'])\n"
        "a = Entry(name='a', command=['programs/reports.py'], **more)\n"
        f"b = Entry(name='b', command=['programs/hangs.py', {str(pids)!r}], **more)\n"
        "for result in run_queue([a, b, a], place, 1e9): print(result.entry, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "a\n"
        while not pids.exists() or len(pids.read_text().split()) < 2:
            assert started.poll() is None
            time.sleep(0.01)
        started.send_signal(signal.SIGINT)
        assert started.stdout.read() == "b\n"
        assert started.wait() != 0
    states = {one.entry: one.status for one in read_results(out).values()}
    assert states == {"a": Status.DONE, "b": Status.INTERRUPTED}
    assert not any(is_running(int(pid)) for pid in pids.read_text().split())


def test_an_older_build_runs_from_its_own_files(root: Path) -> None:
    old = git(root, "rev-parse", "HEAD")
    (root / "programs" / "reports.py").write_text(REPORTS.replace("arguments", "renamed"))
    base = {"commit": old, "command": ["programs/reports.py", "--old"]}
    both = Entry.model_validate({**entry("a", "reports").model_dump(), "base": base})
    missing = run(root, both)["a"]
    assert missing.status is Status.FAILED
    assert missing.reason.startswith("base: ")
    assert "make gpu-carry" in missing.reason
    folder = base_folder(place(root).bases, old)
    (folder / "programs").mkdir(parents=True)
    (folder / "programs" / "reports.py").write_text(git(root, "show", f"{old}:programs/reports.py"))
    reports = run(root, both)["a"].reports
    assert reports["new"]["renamed"][:2] == ["--seconds", "27.0"]
    assert reports["base"]["arguments"][:3] == ["--old", "--seconds", "27.0"]


def test_a_carried_older_build_has_what_benchmarks_need(tmp_path: Path) -> None:
    commit = git(ROOT, "rev-parse", "HEAD")
    carry_base(commit, tmp_path)
    folder = base_folder(tmp_path, commit)
    assert (folder / "bench" / "gpu" / "__main__.py").exists()
    assert (folder / "tests" / "shadow_cuda" / "active.py").exists()
    assert not (folder / "bench" / "results").exists()
    assert not (folder / "examples").exists()


@pytest.mark.parametrize(
    ("left_s", "chosen"), [(100.0, "long"), (60.0, "short"), (10.0, None), (-1.0, None)]
)
def test_the_first_entry_that_fits_is_next(left_s: float, chosen: str | None) -> None:
    long = entry("long", "reports").model_copy(update={"seconds": 80.0, "limit": 120.0})
    short = entry("short", "reports").model_copy(update={"seconds": 20.0})
    found = next_entry([long, short], left_s)
    assert (found and found.name) == chosen
    assert limit_of(long, 100.0) == 95.0
    assert limit_of(long, 500.0) == 120.0


def test_no_entry_begins_that_does_not_fit(root: Path) -> None:
    entries = [entry("a", "reports"), entry("b", "reports")]
    ticks = iter([0.0, 0.0, 95.0])
    results = list(run_queue(entries, place(root), 100.0, clock=lambda: next(ticks)))
    assert [one.entry for one in results] == ["a"]


def alone(name: str) -> Entry:
    return entry(name, "reports").model_copy(update={"alone": True})


def test_an_entry_that_has_to_be_alone_runs_first_or_not_at_all(root: Path) -> None:
    assert [*run(root, alone("a"))] == ["a"]
    first = list(run_queue([alone("a"), entry("b", "reports")], place(root), 1e9, lambda: 0.0))
    later = list(run_queue([entry("b", "reports"), alone("a")], place(root), 1e9, lambda: 0.0))
    assert [[one.entry for one in ran] for ran in (first, later)] == [["a"], ["b"]]


def test_an_entry_that_has_to_be_alone_is_due_once_per_minor_version() -> None:
    files = {"kernels/first.py": "digest"}
    mark = Mark(
        commit="1", card=CARD, date="2026-11-30", command=alone("a").command, base=None,
        files={}, version="0.2.3",
    )  # fmt: skip
    reasons = [reason_due(alone("a"), mark, files, one) for one in ("0.2.9", "0.3.0", "1.2.0")]
    assert reasons == [None, "no result of version 0.3 yet", "no result of version 1.2 yet"]
    assert reason_due(alone("a"), None, files, "0.3.0") == "no result yet"


PART = """
import os, sys
out = sys.argv[sys.argv.index("--out") + 1]
parts = len([name for name in os.listdir(out) if name.startswith("part")])
open(f"{out}/part-{parts}", "w").close()
with open(f"{out}/report.json", "x") as file:
    file.write(str(parts))
sys.exit(parts < 2)
"""


@pytest.fixture
def continued(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose first entry is alone, and complete after three runs."""
    (root / "programs" / "part.py").write_text(PART)
    first = toml("first", "alone = true").replace("reports.py", "part.py")
    (root / FILE).write_text(first + toml("second"))
    git(root, "add", "-A")
    git(root, "commit", "--quiet", "-m", "Measure in parts")
    monkeypatch.setattr(command, "ROOT", root)
    monkeypatch.setattr(command, "_card", lambda: CARD)
    return root


def run_command(root: Path) -> dict[str, EntryResult]:
    main(["--minutes", "9", "--out", str(place(root).out)], time.monotonic())
    return {one.entry: one for one in read_results(place(root).out).values()}


def test_an_entry_alone_is_continued_and_blocks_no_other(continued: Path) -> None:
    results = run_command(continued)
    assert [*results] == ["first"]
    assert (results["first"].status, results["first"].reports) == (Status.FAILED, {"new": 0})
    assert [*run_command(continued)] == ["first", "second"]
    assert "marked as incomplete: first" in list(collect(place(continued).out, continued))
    assert due(continued) == {"first": "its result is incomplete"}
    assert run_command(continued)["first"].reports == {"new": 1}
    assert run_command(continued)["first"].status is Status.DONE
    assert "marked: first" in list(collect(place(continued).out, continued))
    assert due(continued) == {}


def test_an_incomplete_entry_is_last_in_an_empty_folder(continued: Path) -> None:
    run_command(continued)
    list(collect(place(continued).out, continued))
    shutil.rmtree(place(continued).out)
    assert [*run_command(continued)] == ["second"]


def test_an_entry_without_the_files_that_it_needs_is_named_and_left_out(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / FILE).write_text(toml("first", 'needs = ["parts/parts.json"]') + toml("second"))
    monkeypatch.setattr(command, "ROOT", root)
    monkeypatch.setattr(command, "_card", lambda: CARD)
    main(["--minutes", "9", "--out", str(place(root).out)], time.monotonic())
    assert "not run: first: parts/parts.json is missing" in capsys.readouterr().out
    assert [one.entry for one in read_results(place(root).out).values()] == ["second"]


def test_every_entry_is_due_until_it_has_a_result(root: Path) -> None:
    assert reasons_due(read_queue(root), read_marks(root), root) == {
        "first": "no result yet",
        "second": "no result yet",
    }


@pytest.fixture
def measured(root: Path) -> Path:
    """The checkout and a run of both of its entries."""
    run(root, *read_queue(root))
    return root


def due(root: Path) -> dict[str, str]:
    return reasons_due(read_queue(root), read_marks(root), root)


def test_collecting_copies_results_and_marks_entries(measured: Path) -> None:
    out = place(measured).out
    printed = list(collect(out, measured))
    mark = read_marks(measured)["first"]
    assert (mark.commit, mark.card) == (git(measured, "rev-parse", "HEAD"), CARD)
    (copy,) = (measured / "bench" / "results").glob("*-first.json")
    assert copy.name == f"gpu-nvidia-h200-{mark.date}-first.json"
    assert copy.read_bytes() == (out / "first.entry.json").read_bytes()
    assert printed == [
        f"copied: {copy.name}",
        f"copied: {copy.name.replace('first', 'second')}",
        "marked: first",
        "marked: second",
    ]
    assert due(measured) == {}


def test_collecting_twice_changes_nothing(measured: Path) -> None:
    list(collect(place(measured).out, measured))
    before = contents(measured)
    assert list(collect(place(measured).out, measured)) == []
    assert contents(measured) == before


def contents(root: Path) -> dict[str, bytes]:
    files = (file for file in (root / "bench").rglob("*") if file.is_file())
    return {str(file): file.read_bytes() for file in files}


def test_a_second_result_of_a_day_keeps_the_first(measured: Path) -> None:
    list(collect(place(measured).out, measured))
    first = place(measured).out / "first.entry.json"
    first.write_text(json.dumps({**json.loads(first.read_text()), "seconds": 99.0}))
    list(collect(place(measured).out, measured))
    assert list(collect(place(measured).out, measured)) == []
    copies = [file.name for file in (measured / "bench" / "results").glob("*-first*.json")]
    assert sorted(name.rpartition("-")[2] for name in copies) == ["2.json", "first.json"]


def test_a_changed_file_makes_exactly_its_entries_due(measured: Path) -> None:
    list(collect(place(measured).out, measured))
    (measured / "kernels" / "second.py").write_text("second = 2\n")
    assert due(measured) == {"second": "changed since: kernels/second.py"}
    (measured / "kernels" / "second.py").write_text("second = 1\n")
    assert due(measured) == {}


def test_a_file_in_a_named_folder_makes_its_entry_due(root: Path) -> None:
    (root / FILE).write_text(toml("first").replace("kernels/first.py", "kernels") + toml("second"))
    git(root, "commit", "--quiet", "-am", "Name a folder")
    run(root, *read_queue(root))
    list(collect(place(root).out, root))
    (root / "kernels" / "__pycache__").mkdir()
    (root / "kernels" / "__pycache__" / "x.pyc").write_text("compiled")
    assert due(root) == {}
    (root / "kernels" / "third.py").write_text("third = 3\n")
    assert due(root) == {"first": "changed since: kernels"}


def test_a_changed_command_makes_its_entry_due(measured: Path) -> None:
    list(collect(place(measured).out, measured))
    text = (measured / FILE).read_text()
    (measured / FILE).write_text(text.replace("reports.py", "silent.py", 1))
    assert due(measured) == {"first": "its command has changed"}


def test_an_entry_that_is_not_done_stays_due(root: Path) -> None:
    first, second = read_queue(root)
    failing = first.model_copy(update={"command": ["programs/raises.py"]})
    run(root, failing, second)
    printed = list(collect(place(root).out, root))
    assert "not marked: first: failed: exit status 1: ZeroDivisionError: of a kind" in printed
    assert due(root) == {"first": "no result yet"}
    assert not list((root / "bench" / "results").glob("*first*"))


def test_a_folder_without_results_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(QueueError, match="contains no results"):
        list(collect(tmp_path, root))


def test_a_damaged_result_is_refused_with_its_file(measured: Path) -> None:
    (place(measured).out / "second.entry.json").write_text('{"entry": "second"}')
    assert_refused(measured, r"second\.entry\.json: not a result of the queue")


def test_results_of_another_commit_are_refused(measured: Path) -> None:
    old = git(measured, "rev-parse", "HEAD")
    git(measured, "commit", "--quiet", "--allow-empty", "-m", "Continue")
    assert_refused(measured, rf"first\.entry\.json: commit is {old}, but [0-9a-f]{{40}} is checked")


def test_results_of_a_changed_checkout_are_refused(root: Path) -> None:
    (root / "kernels" / "first.py").write_text("first = 2\n")
    run(root, *read_queue(root))
    assert_refused(root, r"commit is [0-9a-f]{40}\+, but")


def test_results_of_a_dry_run_are_refused(root: Path) -> None:
    assert list(run_queue(read_queue(root), place(root, is_dry=True), 1e9, lambda: 0.0))
    assert_refused(root, "of a dry run, which measures nothing")


def test_results_of_an_unknown_entry_are_refused(measured: Path) -> None:
    (measured / FILE).write_text(toml("second"))
    assert_refused(measured, "the queue has no entry first")


def assert_refused(root: Path, match: str) -> None:
    """Nothing is copied or marked, of the other results either."""
    before = contents(root)
    with pytest.raises(QueueError, match=match):
        list(collect(place(root).out, root))
    assert contents(root) == before


Bad = Callable[[str], str]
BAD: dict[str, tuple[Bad, str]] = {
    "unknown key": (lambda text: text + "expected = 3\n", "expected: Extra inputs are not"),
    "missing key": (lambda text: text.replace('decides = "d"\n', ""), "decides: Field required"),
    "missing file": (
        lambda text: text.replace("kernels/second", "kernels/third"),
        "files: kernels/third.py does not exist",
    ),
    "missing program": (
        lambda text: text.replace("programs/reports", "programs/none"),
        "command: programs/none.py does not exist",
    ),
    "outside": (
        lambda text: text.replace("kernels/second.py", "../second.py"),
        "files: ../second.py is not a path below the repository's root",
    ),
    "too long": (
        lambda text: text.replace("seconds = 5", "seconds = 121"),
        "seconds is 121, above limit, 120",
    ),
    "limit too long": (
        lambda text: text + "limit = 121\n",
        "limit is 121, above 120",
    ),
    "above its limit": (lambda text: text + "limit = 4\n", "seconds is 5, above limit, 4"),
    "name": (lambda text: text.replace('"second"', '"Second one"'), "name: String should match"),
    "same name": (lambda text: text.replace('"second"', '"first"'), "name: an entry above has"),
    "base": (
        lambda text: text + 'base = { commit = "HEAD", command = ["x"] }\n',
        "base: commit: String should match",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_malformed_entry_is_named_with_its_line(root: Path, kind: str) -> None:
    spoil, message = BAD[kind]
    text = spoil(toml("second"))
    (root / FILE).write_text("# A comment\n" + toml("first") + text)
    name = next(line.split('"')[1] for line in text.splitlines() if line.startswith("name"))
    with pytest.raises(QueueError) as caught:
        read_queue(root)
    assert str(caught.value).startswith(f"bench/gpu/queue.toml:9: entry {name}: ")
    assert message in str(caught.value)


def test_all_errors_of_a_queue_are_listed(root: Path) -> None:
    wrong = [toml(name).replace("seconds = 5", "seconds = 0") for name in ("first", "second")]
    (root / FILE).write_text("".join(wrong))
    with pytest.raises(QueueError) as caught:
        read_queue(root)
    assert [line.split(":")[1] for line in str(caught.value).splitlines()] == ["1", "8"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[entry]\n", r"queue\.toml: Expected"),
        ("[[entries]]\n", r"contains entries, not \[\[entry\]\] alone"),
        ("entry = 3\n", "not"),
    ],
)
def test_a_file_that_is_no_queue_is_refused(root: Path, text: str, message: str) -> None:
    (root / FILE).write_text(text)
    with pytest.raises(QueueError, match=message):
        read_queue(root)


def test_damaged_marks_are_refused_with_their_file(root: Path) -> None:
    (root / MARKS).write_text('{"first": {"commit": 3}}')
    with pytest.raises(QueueError, match=r"queue-marks\.json"):
        read_marks(root)


def test_a_checkout_without_history_knows_its_commit(root: Path, tmp_path: Path) -> None:
    carry, copy = tmp_path / "carried", tmp_path / "copy"
    carry.mkdir()
    commit = write_manifest(root, carry).commit
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns(".git"))
    assert commit_of(copy, carry) == commit
    (copy / MARKS).write_text('{"written": "after a run"}')
    (copy / "untracked.txt").write_text("new")
    assert commit_of(copy, carry) == commit
    (copy / "kernels" / "first.py").write_text("first = 2\n")
    assert commit_of(copy, carry) == f"{commit}+"
    (carry / MANIFEST).unlink()
    assert commit_of(copy, carry) == "unknown"


def test_an_old_manifest_does_not_name_the_commit(root: Path, tmp_path: Path) -> None:
    write_manifest(root, tmp_path)
    (root / "kernels" / "first.py").write_text("first = 2\n")
    assert commit_of(root, tmp_path) == git(root, "rev-parse", "HEAD") + "+"
    git(root, "commit", "--quiet", "-am", "Continue")
    assert commit_of(root, tmp_path) == git(root, "rev-parse", "HEAD")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--minutes", "9.5", "--out", "x"],
        ["--minutes", "0", "--out", "x"],
        ["--minutes", "nan", "--out", "x"],
        ["--minutes", "5"],
        [],
        ["--dry-run", "--collect", "x"],
    ],
)
def test_options_without_sense_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        Options.parse(arguments)
    assert caught.value.code == 2


def test_the_check_of_lint_fails_with_name_and_line(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "ROOT", root)
    assert main(["--check"], 0.0) == 0
    (root / FILE).write_text(toml("first", "expected = 3"))
    assert main(["--check"], 0.0) == 1
    assert capsys.readouterr().err.startswith("bench/gpu/queue.toml:1: entry first: expected: ")


def test_collecting_by_command_prints_changes_and_refusals(
    measured: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "ROOT", measured)
    given = ["--collect", str(place(measured).out)]
    assert [main(given, 0.0) for _ in range(2)] == [0, 0]
    assert capsys.readouterr().out.endswith("marked: first\nmarked: second\nnothing new\n")
    assert main(["--collect", str(measured)], 0.0) == 1
    assert "contains no results" in capsys.readouterr().err


def test_the_docs_list_every_entry_with_its_seconds() -> None:
    text = (ROOT / "docs" / "gpu.md").read_text()
    for one in read_queue(ROOT):
        (row,) = [line for line in text.splitlines() if line.startswith(f"| `{one.name}` |")]
        assert f"| {one.seconds:g} s" in row


def test_a_run_without_a_gpu_names_the_dry_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(SystemExit, match="--dry-run runs every entry"):
        main(["--minutes", str(MAX_MINUTES), "--out", str(tmp_path)], 0.0)


def test_the_queue_of_this_checkout_is_well_formed() -> None:
    entries = read_queue(ROOT)
    assert entries
    assert all(one.limit <= MAX_SECONDS for one in entries if not one.alone)
    assert [one.name for one in entries if one.alone] == ["peers"]
    ours = "bench/gpu/peers/cells.py"
    assert [one.name for one in entries if any(ours.startswith(f) for f in one.files)] == ["peers"]
    assert entries[0].alone
    assert set(read_marks(ROOT)) <= {one.name for one in entries}


def is_in_clone(commit: str) -> bool:
    found = ["git", "cat-file", "-e", f"{commit}^{{commit}}"]
    return subprocess.run(found, cwd=ROOT, capture_output=True, check=False).returncode == 0


def test_a_dry_run_writes_one_result_per_entry(tmp_path: Path) -> None:
    program = [sys.executable, str(ROOT / "bench" / "gpu" / "gpu_queue"), "--dry-run"]
    where = ["--carry", str(tmp_path / "none"), "--out", str(tmp_path / "out")]
    done = subprocess.run([*program, *where], capture_output=True, text=True, env=dict(os.environ))
    results = {one.entry: one for one in read_results(tmp_path / "out").values()}
    entries = read_queue(ROOT)
    assert set(results) == {one.name for one in entries}, done.stdout + done.stderr
    for one in entries:
        result = results[one.name]
        has_base = one.base is not None and is_in_clone(one.base.commit)
        lacks_base = one.base is not None and not has_base  # in a shallow clone
        status = Status.FAILED if lacks_base else Status.DONE
        assert (result.status, result.is_dry) == (status, True), result.reason + result.tail
        assert result.reason.startswith("base: " if lacks_base else "")
        assert set(result.reports) == ({"new", "base"} if has_base else {"new"})
        for report in result.reports.values():
            assert report["measured"] == DRY
            if one.name == "peers":
                assert_cells_are_measured(report)
            else:
                assert_sections_are_done(report)


def assert_cells_are_measured(report: dict[str, Any]) -> None:
    assert report["cells"]
    assert {cell["state"] for cell in report["cells"]} == {"measured"}


def assert_sections_are_done(report: dict[str, Any]) -> None:
    assert {section["state"] for section in report["sections"]} == {"done"}
    assert all(section["rows"] for section in report["sections"])
