"""The program in its own process: links, pins, termination message, HTTP progress, signals."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest

from specdecode_api import names
from specdecode_api.report import (
    ModelRole,
    ModelState,
    Progress,
    TerminationMessage,
    TerminationReason,
)

PROGRAM = (sys.executable, "-m", "specdecode_engine", "fetch")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
RESUMED = f"bytes={10 * 2**20}-"
OTHER_COMMIT = "fedcba9876543210fedcba9876543210fedcba98"


@pytest.fixture
def run(hub, tmp_path):
    """Start the program; return its process and the path of its termination message."""
    processes = []

    def start(*arguments, **environment):
        words = tmp_path / "termination-log"
        process = subprocess.Popen(
            [*PROGRAM, "--cache", tmp_path / "cache", "--links", tmp_path / "links", *arguments],
            env={
                **os.environ,
                "HF_ENDPOINT": hub.url,
                names.VARIABLE_TERMINATION_MESSAGE_PATH: str(words),
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process, words

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def finished(started):
    process, words = started
    out, err = process.communicate(timeout=60)
    return process.returncode, TerminationMessage.decode(words.read_text()), out + err


def test_target_and_draft_are_fetched_and_linked(hub, tiny, files, run, tmp_path):
    hub.add("org/draft", files)
    code, words, log = finished(run("--target", "hf://org/tiny", "--draft", "hf://org/draft@main"))
    assert code == 0, log
    assert words.reason == TerminationReason.FETCHED
    assert [(model.role, model.revision) for model in words.models] == [
        (ModelRole.TARGET, COMMIT),
        (ModelRole.DRAFT, COMMIT),
    ]
    assert {model.state for model in words.models} == {ModelState.READY}
    for role, name in (("target", "tiny"), ("draft", "draft")):
        link = tmp_path / "links" / role
        assert link.resolve() == tmp_path / "cache" / "hf" / "org" / name / COMMIT
        assert (link / "config.json").read_bytes() == files["config.json"]
    assert "model.safetensors is complete and checked" in log


def test_a_pinned_branch_stays_where_it_was(hub, tiny, files, run, tmp_path):
    tiny.commits[OTHER_COMMIT] = files
    tiny.branches["main"] = OTHER_COMMIT
    pins = tmp_path / "pins.json"
    pins.write_text(json.dumps({"hf://org/tiny": COMMIT}))
    code, words, log = finished(run("--target", "hf://org/tiny", "--pins", str(pins)))
    assert code == 0, log
    assert words.models[0].revision == COMMIT
    code, words, _ = finished(run("--target", "hf://org/tiny", "--pins", str(tmp_path / "none")))
    assert (code, words.models[0].revision) == (0, OTHER_COMMIT)
    assert (tmp_path / "links" / "target").resolve().name == OTHER_COMMIT


def test_a_fault_is_left_as_last_words(hub, files, run):
    hub.add("org/tiny", files, token="right", is_gated=True)
    code, words, log = finished(run("--target", "hf://org/tiny", HF_TOKEN="wrong-token"))
    assert code == 1
    assert words.reason == TerminationReason.UNAUTHORIZED
    assert "accept its terms" in words.message
    assert words.models[0].state is ModelState.FAILED
    assert "wrong-token" not in log + words.message
    assert "Traceback" not in log


def test_a_token_from_the_environment_is_shown(hub, files, run):
    hub.add("org/tiny", files, token="right")
    assert finished(run("--target", "hf://org/tiny", HF_TOKEN="right"))[0] == 0


def test_the_progress_is_answered_and_a_signal_ends_it(hub, tiny, files, run):
    hub.faults.hold = threading.Event()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process, _ = run("--target", "hf://org/tiny", "--port", str(port))
    url = f"http://127.0.0.1:{port}"
    message = _until_downloading(url, process)
    assert message.role is ModelRole.TARGET
    assert message.revision == COMMIT
    assert message.bytes_done < message.bytes_total
    assert httpx.get(url + names.PATH_STARTUP).status_code == 503
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 1
    hub.faults.hold.set()


def _until_downloading(url, process):
    pause = threading.Event()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, process.stderr.read()
        try:
            answer = httpx.get(url + names.PATH_PROGRESS)
            (model,) = Progress.model_validate_json(answer.text).models
            if model.state is ModelState.DOWNLOADING:
                return model
        except httpx.TransportError:
            pass
        pause.wait(0.05)
    pytest.fail("the download never began")


def test_a_killed_download_is_taken_up_by_the_next_process(large, hub, tiny, run):
    # Cut again and again, the first process is killed while it tries; the second comes through.
    hub.faults.cut["model.safetensors"] = [15_000_000, 0, 0, 0, 0, 0, 0]
    process, _ = run("--target", "hf://org/tiny")
    pause = threading.Event()
    deadline = time.monotonic() + 60
    while RESUMED not in hub.ranges():
        assert time.monotonic() < deadline
        pause.wait(0.02)
    process.kill()
    process.wait()
    hub.faults.cut.clear()
    hub.requests.clear()
    code, _, log = finished(run("--target", "hf://org/tiny"))
    assert code == 0, log
    assert {asked for asked in hub.ranges() if asked} == {RESUMED}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name a model with --target or --draft"),
        (("--target", "pvc://models/x"), "is not on the hub; write hf://ORG/NAME@REVISION"),
    ],
)
def test_bad_arguments_are_refused(arguments, words, run):
    process, _ = run(*arguments)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert words in re.sub(r"\s+", " ", err)
