"""A forwarded port that outlives its pod: real connections, and a program for kubectl."""

import contextlib
import json
import os
import signal
import socket
import socketserver
import threading
from pathlib import Path

import pytest

from specdecode_operator.plugin.engine_pod import EnginePod
from specdecode_operator.plugin.errors import PluginError
from specdecode_operator.plugin.port_forward import MOST_SHORT, forwarded
from tests.operator.forwarding_kubectl import PORTS, write_program


class Pods:
    """Servers that send their names as pods; `find` chooses one other than the last."""

    def __init__(self, names):
        self.servers = {name: start_server(name) for name in names}
        self.ports = {name: one.server_address[1] for name, one in self.servers.items()}

    def find(self, last):
        ready = sorted(self.servers, key=lambda name: name == last)
        if not ready:
            raise PluginError("no engine pod of chat is ready")
        return EnginePod("default", "chat", ready[0], 8000, wants_page=True)

    def end(self, name):
        server = self.servers.pop(name)
        server.shutdown()
        server.server_close()


def start_server(name):
    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.sendall(name.encode())

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server


def answer_at(url):
    """Which pod a forwarded port connects to; "" if it ends the connection."""
    answer = b""
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    with socket.create_connection(address) as client, contextlib.suppress(ConnectionResetError):
        while part := client.recv(100):
            answer += part
    return answer.decode()


@pytest.fixture
def pods(tmp_path, monkeypatch):
    made = Pods(["chat-a", "chat-b"])
    for name, value in write_program(tmp_path / "bin", made.ports).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SPECDECODE_API_KEY", "sk-not-for-kubectl")
    yield made
    for name in [*made.servers]:
        made.end(name)


def test_a_forward_goes_to_another_pod_on_the_same_port(pods):
    with forwarded(pods.find, []) as forward:
        url = forward.url
        assert answer_at(url) == forward.pod.name == "chat-a"
        assert not forward.renew()
        pods.end("chat-a")
        assert answer_at(url) == ""
        assert forward.wait(60)
        assert forward.renew()
        assert (forward.url, answer_at(url)) == (url, "chat-b")
    with pytest.raises(ConnectionRefusedError):
        answer_at(url)


def test_a_forward_without_another_pod_ends_with_the_reason(pods):
    pods.end("chat-b")
    with forwarded(pods.find, []) as forward:
        pods.end("chat-a")
        answer_at(forward.url)
        assert forward.wait(60)
        with pytest.raises(PluginError, match="no engine pod of chat is ready"):
            forward.renew()


def test_a_pod_that_ends_every_forward_is_given_up(pods):
    pods.find = lambda last: EnginePod("default", "chat", "chat-a", 8000, wants_page=True)
    pods.end("chat-a")
    with forwarded(pods.find, []) as forward:
        for _ in range(MOST_SHORT - 1):
            answer_at(forward.url)
            assert forward.wait(60)
            assert forward.renew()
        answer_at(forward.url)
        assert forward.wait(60)
        with pytest.raises(PluginError, match="lost connection to pod"):
            forward.renew()


def test_a_port_in_use_is_refused_with_the_flag(pods):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with (
            pytest.raises(PluginError, match=f"port {port} of 127.0.0.1 is in use; .*--port"),
            forwarded(pods.find, [], port),
        ):
            pass


def test_a_pod_that_is_gone_is_named(pods):
    Path(os.environ[PORTS]).write_text(json.dumps({}))
    with pytest.raises(PluginError, match='pods "chat-a" not found'), forwarded(pods.find, []):
        pass


def test_without_kubectl_the_remedy_is_named(pods, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PluginError, match="kubectl is not in PATH"), forwarded(pods.find, []):
        pass


def test_an_end_by_a_signal_ends_kubectl(pods):
    before = signal.getsignal(signal.SIGTERM)
    urls: list[str] = []
    with pytest.raises(SystemExit) as ended:
        forward_until_terminated(pods, urls)
    assert ended.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before
    with pytest.raises(ConnectionRefusedError):
        answer_at(urls[0])


def forward_until_terminated(pods, urls):
    with forwarded(pods.find, []) as forward:
        urls.append(forward.url)
        os.kill(os.getpid(), signal.SIGTERM)
