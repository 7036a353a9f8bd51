"""Models of the Hub by name: downloaded by the start of an engine, in its own process."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from specdecode_api.report import ModelReport, ModelRole, ModelState
from specdecode_engine.cli.flags import parse_flags
from specdecode_engine.fetch.progress_bar import bar
from specdecode_engine.process import ConfigurationError
from tests.engine.fetch.hub_server import COMMIT

PROGRAM = """
import sys
from specdecode_engine.__main__ import _find_models
from specdecode_engine.cli.flags import parse_flags
from specdecode_engine.process import ConfigurationError, configure_logging
configure_logging()
parsed = parse_flags(sys.argv[1:])
try:
    boot = _find_models(parsed)(parsed)
except ConfigurationError as error:
    sys.exit(str(error))
print(boot.model.path, boot.model.served_name, boot.speculation.draft_path)
assert "torch" not in sys.modules and "transformers" not in sys.modules
"""
PAIR = (
    *("--model-path", "org/tiny", "--speculative-algorithm", "STANDALONE"),
    *("--speculative-draft-model-path", "hf://org/draft@main", "--management-port", "0"),
    *("--port", "0"),
)


@pytest.fixture
def begin(hub, tmp_path):
    """Start a process that finds the models of a command line."""
    processes = []

    def start(*flags, stderr=subprocess.PIPE, **environment):
        home = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": ""}
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *flags],
            env=os.environ | home | environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_target_and_draft_are_downloaded_and_named(hub, tiny, files, begin, tmp_path):
    hub.add("org/draft", files, token="sk-canary")
    process = begin(*PAIR, HF_TOKEN="sk-canary")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    folder = tmp_path / "home" / "specdecode" / "hf" / "org"
    assert out.split() == [f"{folder}/tiny/{COMMIT}", "org/tiny", f"{folder}/draft/{COMMIT}"]
    assert (folder / "tiny" / COMMIT / "tokenizer.json").exists()
    tenths = re.findall(r"target: \d+ of \d+ bytes \((\d+) %\)", err)
    assert 1 <= len(tenths) <= 10
    assert tenths[-1] == "100"
    assert "sk-canary" not in out + err
    assert hub.leaked == []


def test_ctrl_c_ends_a_download_with_one_line_and_the_next_continues(hub, large, tiny, begin):
    hub.faults.cut["model.safetensors"] = [15_000_000, *[0] * 6]
    process = begin("--model-path", "org/tiny", "--port", "0", "--management-port", "0")
    deadline, pause = time.monotonic() + 60, threading.Event()
    while f"bytes={10 * 2**20}-" not in hub.ranges():
        assert time.monotonic() < deadline
        pause.wait(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGINT
    assert "Traceback" not in err
    assert re.search(r"stopped; \d{8} downloaded bytes stay in /.*/specdecode, and the", err)
    hub.faults.cut.clear()
    hub.requests.clear()
    process = begin("--model-path", "org/tiny", "--port", "0", "--management-port", "0")
    assert process.wait(60) == 0, process.stderr.read()
    assert {asked for asked in hub.ranges() if asked} == {f"bytes={10 * 2**20}-"}


def test_a_terminal_gets_a_bar_and_no_lines_of_the_log(hub, large, tiny, begin):
    hub.faults.hold = threading.Event()
    leader, follower = pty.openpty()
    begin("--model-path", "org/tiny", "--port", "0", "--management-port", "0", stderr=follower)
    os.close(follower)
    shown = _read_until(leader, "0 % [")
    hub.faults.hold.set()
    shown += _read_until(leader, "100 % [########################]")
    assert "\r\x1b[Ktarget   0 % [........................] 0.00 of 0.03 GB" in shown
    assert "is complete and checked" not in shown
    os.close(leader)


def _read_until(terminal, words):
    shown, deadline = "", time.monotonic() + 60
    while words not in shown:
        assert time.monotonic() < deadline, shown
        if select.select([terminal], [], [], 1)[0]:
            shown += os.read(terminal, 4096).decode()
    return shown


def test_a_bar_has_rate_and_time_left_and_fits_the_terminal():
    report = ModelReport(
        role=ModelRole.DRAFT, uri="hf://a/b", state=ModelState.DOWNLOADING,
        bytes_done=3 * 10**9, bytes_total=4 * 10**9,
    )  # fmt: skip
    line = bar(report, 50e6, 200)
    assert line == f"draft   75 % [{'#' * 18}......] 3.00 of 4.00 GB, 50 MB/s, 20 s left"
    assert bar(report, 0, 20) == line[:20]


def test_a_changed_boot_file_finds_the_same_folders(tmp_path):
    from specdecode_engine.cli.hub_models import DownloadedModels

    models = DownloadedModels({"hf://a/b@v1": tmp_path / "t", "a/draft": tmp_path / "d"})
    flags = ["--model-path", "hf://a/b@v1", "--speculative-algorithm", "STANDALONE"]
    read = parse_flags([*flags, "--speculative-draft-model-path", "a/draft"])
    boot = models.in_place(read)
    assert (boot.model.path, boot.model.served_name) == (str(tmp_path / "t"), "a/b")
    assert Path(boot.speculation.draft_path or "") == tmp_path / "d"
    named = parse_flags([*flags, "--speculative-draft-model-path", "x", "--served-model-name", "c"])
    assert models.in_place(named).model.served_name == "c"
    assert models.in_place(named).speculation.draft_path == "x"


@pytest.mark.parametrize("model", ["Qwen/Qwen3-0.6B", "hf://Qwen/Qwen3-0.6B@v1"])
def test_adapters_may_not_have_the_name_of_a_model_of_the_hub(model):
    from specdecode_engine.cli.model_names import check_adapter_names

    flags = ["--model-path", model, "--lora-modules"]
    check_adapter_names(parse_flags([*flags, "Qwen3-0.6B=/a"]))
    taken = parse_flags([*flags, "Qwen/Qwen3-0.6B=/a"])
    with pytest.raises(ConfigurationError, match=r"Qwen/Qwen3-0\.6B is the name of the model"):
        check_adapter_names(taken)
    named = parse_flags([*flags, "Qwen/Qwen3-0.6B=/a", "--served-model-name", "base"])
    check_adapter_names(named)


def test_adapters_may_not_have_the_name_of_a_folder(tmp_path, monkeypatch):
    from specdecode_engine.cli.model_names import check_adapter_names

    (tmp_path / "models" / "base").mkdir(parents=True)
    (tmp_path / "models" / "base" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    boot = parse_flags(["--model-path", "models/base", "--lora-modules", "base=/a"])
    with pytest.raises(ConfigurationError, match=r"--lora-modules .*base is the name of the model"):
        check_adapter_names(boot)
