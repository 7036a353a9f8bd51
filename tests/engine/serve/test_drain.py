"""`specdecode-engine drain` and `undrain` against real processes, through the real socket."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from specdecode_engine import drain_socket
from specdecode_engine.drain_socket import DrainSocketError

BODY = {"prompt": "the fox", "max_tokens": 3}


@pytest.fixture
def run(tmp_path):
    """Run a subcommand as the preStop hook does; its result, and how long it took."""

    def command(*words):
        started_s = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "specdecode_engine", *words],
            env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done, time.monotonic() - started_s

    return command


def ready(engine):
    answer = httpx.get(engine.management_url + "/ready")
    return answer.status_code, answer.json().get("reason")


def test_a_drained_engine_is_not_ready_and_serves_until_it_is_undrained(start_process, run):
    engine = start_process()
    done, _ = run("drain")
    assert (done.returncode, done.stdout) == (0, "draining; running requests: 0\n")
    assert ready(engine) == (503, "draining")
    answer = httpx.post(engine.url + "/v1/completions", json=BODY, timeout=20)
    assert (answer.status_code, answer.headers["connection"]) == (200, "close")
    done, _ = run("undrain")
    assert (done.returncode, done.stdout) == (0, "serving\n")
    assert ready(engine) == (200, None)


def test_drain_returns_after_its_timeout_while_the_engine_serves(start_process, run):
    engine = start_process()
    done, seconds = run("drain", "--timeout", "1.5")
    assert done.returncode == 0
    assert seconds >= 1.5
    assert httpx.post(engine.url + "/v1/completions", json=BODY, timeout=20).status_code == 200


def test_drain_returns_when_the_engine_stops(start_process, tmp_path):
    engine = start_process()
    draining = subprocess.Popen(
        [sys.executable, "-m", "specdecode_engine", "drain", "--timeout", "600"],
        env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert draining.stdout is not None
        assert draining.stdout.readline() == "draining; running requests: 0\n"
        engine.process.send_signal(signal.SIGTERM)
        assert draining.wait(20) == 0
        assert draining.stdout.read() == "the engine is stopping\n"
    finally:
        draining.kill()
        draining.communicate()
    assert engine.process.wait(20) == 0


def test_the_socket_is_private_and_is_removed_at_exit(start_process, tmp_path):
    engine = start_process()
    path = tmp_path / "specdecode" / f"127.0.0.1-{engine.port}.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    engine.process.send_signal(signal.SIGTERM)
    assert engine.process.wait(20) == 0
    assert not path.exists()


def test_the_socket_of_a_killed_engine_is_ignored_and_replaced(start_process, run, free_port):
    killed = start_process(port=free_port)
    killed.process.kill()
    killed.process.wait()
    done, seconds = run("drain", "--timeout", "30")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no engine is running" in done.stderr
    assert seconds < 20
    engine = start_process(port=free_port)
    assert run("drain")[0].returncode == 0
    assert ready(engine) == (503, "draining")


def test_one_of_several_engines_is_named_by_its_socket(start_process, run, tmp_path):
    one, other = start_process(), start_process(drain_socket=str(tmp_path / "other.sock"))
    third = start_process()
    done, _ = run("drain")
    assert done.returncode == 1
    assert "2 engines are running" in done.stderr
    assert all(f"127.0.0.1-{each.port}.sock" in done.stderr for each in (one, third))
    assert run("drain", "--socket", str(tmp_path / "other.sock"))[0].returncode == 0
    assert [ready(each)[0] for each in (one, other, third)] == [200, 503, 200]


@pytest.mark.parametrize("command", ["drain", "undrain"])
def test_without_an_engine_the_command_fails_with_the_remedy(run, tmp_path, command):
    done, _ = run(command)
    assert done.returncode == 1
    assert "no engine is running" in done.stderr
    assert "--socket" in done.stderr
    done, _ = run(command, "--socket", str(tmp_path / "none"))
    assert done.returncode == 1
    assert "No such file" in done.stderr


def test_an_engine_that_does_not_answer_leaves_the_time_and_an_error(start_process, run):
    engine = start_process()
    engine.process.send_signal(signal.SIGSTOP)
    try:
        done, seconds = run("drain", "--timeout", "7")
    finally:
        engine.process.send_signal(signal.SIGCONT)
    assert done.returncode == 1
    assert "does not answer" in done.stderr
    assert seconds >= 7


def test_a_stopping_engine_is_not_undrained(start_server):
    server = start_server(step_seconds=0.05, tokens_per_step=1)
    server.service.lifecycle.is_stopping = True
    try:
        with (
            drain_socket.DrainClient(server.drain_socket) as client,
            pytest.raises(DrainSocketError, match="cannot serve again"),
        ):
            client.send(drain_socket.UNDRAIN)
    finally:
        server.service.lifecycle.is_stopping = False


@pytest.mark.parametrize(
    "garbage",
    [
        b"hello\n",
        b"[]\n",
        b"null\n",
        b'{"command": "shutdown"}\n',
        b'{"command": ["drain"]}\n',
        b"[" * 4000 + b"\n",
        b"x" * 10_000 + b"\n",
        b"\xff\xfe\n",
    ],
)
def test_garbage_on_the_socket_is_answered_with_an_error(echo_server, garbage):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
        raw.settimeout(10)
        raw.connect(str(echo_server.drain_socket))
        raw.sendall(garbage)
        reply = json.loads(raw.makefile("rb").readline())
    assert '{"command": "drain"}' in reply["error"]
    assert echo_server.get("/ready").status_code == 200


def test_a_client_that_disconnects_leaves_the_engine_draining(start_server):
    server = start_server()
    with drain_socket.DrainClient(server.drain_socket) as client:
        client.send(drain_socket.DRAIN)
    assert server.get("/ready").json()["reason"] == "draining"
    with drain_socket.DrainClient(server.drain_socket) as client:
        assert client.send(drain_socket.UNDRAIN)["status"] == "serving"
    assert server.get("/ready").status_code == 200


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def test_a_path_that_cannot_be_used_is_refused_with_the_remedy(folders):
    file = folders / "file"
    file.write_text("precious")
    with pytest.raises(DrainSocketError, match="is not a socket; remove the file"):
        drain_socket.listen(str(file), "127.0.0.1", 1)
    assert file.read_text() == "precious"
    with pytest.raises(DrainSocketError, match="limit is 107"):
        drain_socket.listen(str(folders / ("x" * 120)), "127.0.0.1", 1)
    with pytest.raises(DrainSocketError, match="No such file or directory; name a path"):
        drain_socket.listen(str(folders / "missing" / "s"), "127.0.0.1", 1)
    (folders / "specdecode").write_text("")
    with pytest.raises(DrainSocketError, match="remove it, or name another path"):
        drain_socket.listen(None, "127.0.0.1", 1)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_the_folder_of_another_user_is_refused(folders):
    (folders / "specdecode").mkdir(mode=0o777)
    os.chown(folders / "specdecode", 12345, 12345)
    with pytest.raises(DrainSocketError, match="belongs to another user"):
        drain_socket.listen(None, "127.0.0.1", 1)


def test_a_second_listener_on_the_same_path_is_refused_and_a_replaced_file_stays(folders):
    path = folders / "engine.sock"
    first = drain_socket.listen(str(path), "127.0.0.1", 1)
    with pytest.raises(DrainSocketError, match="another engine listens"):
        drain_socket.listen(str(path), "127.0.0.1", 1)
    path.unlink()
    second = drain_socket.listen(str(path), "127.0.0.1", 1)
    first.close()
    assert path.exists()
    second.close()
    assert not path.exists()


def test_the_folder_for_temporary_files_is_used_without_a_runtime_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert drain_socket.default_folder() == Path(tmp_path) / f"specdecode-{os.getuid()}"
    listener = drain_socket.listen(None, "0.0.0.0", 8000)
    assert drain_socket.find_socket() == listener.path
    listener.close()
