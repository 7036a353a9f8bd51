"""The whole process: real signals, real exit codes, sockets that others use."""

import signal
import socket

import httpx
import pytest

from specdecode_api.report import TerminationMessage, TerminationReason


@pytest.fixture
def start(start_process):
    def run(step_seconds=0.05):
        engine = start_process(step_seconds)
        return engine.process, engine.url

    return run


def test_sigterm_finishes_the_running_stream_and_exits_with_0(start):
    process, url = start()
    body = {"prompt": "the fox", "max_tokens": 20, "stream": True}
    with httpx.stream("POST", url + "/v1/completions", json=body, timeout=20) as answer:
        lines = answer.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        rest = list(lines)
    assert rest[-2] == "data: [DONE]"
    assert process.wait(10) == 0


def test_a_step_that_never_ends_cannot_keep_the_process(start):
    process, url = start(step_seconds=600)
    body = {"prompt": "the fox", "stream": True}
    with httpx.stream("POST", url + "/v1/completions", json=body, timeout=30) as answer:
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        assert "stopped before" in answer.read().decode()
    assert process.wait(20) == 0
    assert "still busy" in process.stdout.read()


@pytest.mark.parametrize(
    ("field", "flag"), [("port", "--port"), ("management_port", "--management-port")]
)
def test_a_port_in_use_ends_the_process_with_the_remedy(start_process, tmp_path, field, flag):
    words = tmp_path / "words"
    environment = {"SPECDECODE_TERMINATION_MESSAGE_PATH": str(words)}
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        engine = start_process(environment=environment, is_ready=False, **{field: port})
        assert engine.process.wait(60) == 1
    log = engine.process.stdout.read()
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in log
    assert f"with {flag} (boot file: server.{field})" in log
    assert "Traceback" not in log
    message = TerminationMessage.decode(words.read_text())
    assert message is not None
    assert message.reason == TerminationReason.ENGINE_FAILED
    assert str(port) in message.message
