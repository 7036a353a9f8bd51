"""The kubectl plugin against a real API server, with pods and a kubelet that this file plays."""

import asyncio
import http.server
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
import yaml
from prometheus_client import generate_latest

from specdecode_api import names
from specdecode_api.metrics import core
from specdecode_api.report import Progress, StartProgress
from specdecode_engine.stats.prometheus import EngineMetrics
from specdecode_engine.stats.snapshot import CoreSnapshot
from specdecode_operator.objects.kinds import EVENT, RESOURCE, ResourceKind
from specdecode_operator.plugin.__main__ import main
from specdecode_operator.plugin.logs import Wanted, logs
from specdecode_operator.plugin.lookup import Scope
from specdecode_operator.plugin.reach import connect
from tests.operator.apiserver.conftest import RUNNING

pytestmark = pytest.mark.apiserver

NODE = ResourceKind("", "v1", "Node", "nodes", ())


@pytest.fixture
def plugin(plane, kubeconfig, capsys):
    """Run the plugin as an administrator; the definition is there once `kubeconfig` is."""

    def run(*words, file=plane.kubeconfig):
        code = main([*map(str, words), "--kubeconfig", str(file)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers with what `answer` makes of a path."""

    answer: Callable[[str], str | None]

    def do_GET(self):
        text = type(self).answer(self.path)
        self.send_response(200 if text is not None else 404)
        self.end_headers()
        self.wfile.write((text or "").encode())

    def log_message(self, *_):
        """Log nothing."""


@pytest.fixture
def serve():
    """Serve answers on an address; returns the port."""
    running = []

    def start(address, answer, context=None):
        handler = type("Answers", (Handler,), {"answer": staticmethod(answer)})
        server = http.server.ThreadingHTTPServer((address, 0), handler)
        if context:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        running.append((server, thread))
        return server.server_address[1]

    yield start
    for server, thread in running:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def own_address():
    """An address of this machine that is not loopback, which the API server does not proxy to."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing
        return probe.getsockname()[0]


@pytest.fixture
def node(api, plane, namespace, serve):
    """Make a node whose kubelet answers with what a function makes of a path; returns its name."""
    authority = plane.plane.authority
    identity = authority.issue("kubelet-of-test", "kubelet", addresses=("127.0.0.1",))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)

    def make(answer):
        port, name = serve("127.0.0.1", answer, context), f"node-{namespace}"
        api.client.post(NODE.path(None), json={"metadata": {"name": name}}).raise_for_status()
        endpoint = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        api.merge(NODE, None, name, {"status": endpoint}, "/status")
        return name

    return make


def test_the_story_of_a_resource(chat, api, namespace, pod, plugin):
    resource = chat(replicas=2)
    condition = {
        "type": "Ready", "status": "False", "reason": "Starting", "message": "1 of 2 engines serve",
        "lastTransitionTime": "2026-11-21T11:00:00Z", "observedGeneration": 1,
    }  # fmt: skip
    status = {"observedGeneration": 1, "configHash": "v1-new", "conditions": [condition]}
    api.merge(RESOURCE, namespace, "chat", {"status": status}, "/status")
    pod("chat-a", **RUNNING)
    pod("chat-b")
    for name, subject in (("one", "chat"), ("two", "chat-b"), ("three", "somebody-else")):
        kind = "Pod" if "-" in subject else names.KIND
        involved = {"kind": kind, "name": subject, "namespace": namespace}
        metadata = {"name": name, "namespace": namespace}
        event = {"metadata": metadata, "involvedObject": involved, "reason": name.title()}
        api.create(EVENT, event | {"message": "m", "lastTimestamp": "2026-11-21T11:00:00Z"})
    code, out, _ = plugin("status", "chat", "-n", namespace)
    assert code == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0].startswith(f"{namespace}/chat Not ready: Starting")
    assert lines[1] == "1 of 2 engines serve"
    assert "Config v1-new, run by 2 of 2 pods" in lines
    assert any(line.startswith("chat-a Ready 0 v1-new") for line in lines)
    assert any(line.startswith("chat-b Pending 0 v1-new") for line in lines)
    reported = [line for line in lines if "/" in line and line.endswith(" m")]
    assert [line.split()[1] for line in reported] == ["One", "Two"]
    assert resource["metadata"]["uid"]


def test_lists_of_resources(chat, namespace, plugin):
    chat()
    chat(name="other")
    code, out, _ = plugin("status", "-n", namespace)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["NAME", "chat", "other"]
    _, out, _ = plugin("status", "-A")
    assert [namespace, "chat"] in [line.split()[:2] for line in out.splitlines()]
    assert plugin("status", "-n", "empty")[1] == "no SpecDecodeDeployment in namespace empty\n"


def test_top_reads_engines_through_the_api_server(chat, namespace, pod, plugin, serve, own_address):
    chat()
    snapshot = CoreSnapshot(
        {
            core.NUM_STEPS: {(): 3},
            core.RUNNING_REQUESTS: {(): 5},
            core.KV_PAGES: {("free",): 5, ("used",): 5},
            core.EMITTED_TOKENS: {(): 25},
            core.REQUEST_STEPS: {(): 10},
        }
    )
    text = generate_latest(EngineMetrics(lambda: snapshot).registry).decode()
    port = serve(own_address, {names.PATH_METRICS: text}.get)
    pod("chat-a", port=port, **RUNNING, podIP=own_address, podIPs=[{"ip": own_address}])
    pod("chat-b")
    code, out, err = plugin("top", "chat", "-n", namespace, "--interval", "0.1")
    assert (code, err) == (0, "")
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}
    assert rows["chat-a"] == ["chat-a", "3", "–", "2.50", "0.0", "–", "5", "0", "50%", "–"]
    assert rows["chat-b"][-1] == "Pending"


def test_status_reads_what_engines_load(chat, namespace, pod, plugin, serve, own_address):
    """Also where an engine does not answer, as one whose container starts."""
    chat()
    start = StartProgress(stage="loading target", done=750, total=1000, unit="B")
    text = Progress(start=start).model_dump_json()
    port = serve(own_address, {names.PATH_PROGRESS: text}.get)
    silent = serve(own_address, lambda path: None)
    at = {"podIP": own_address, "podIPs": [{"ip": own_address}]}
    pod("chat-a", port=port, phase="Running", **at)
    pod("chat-b", port=silent, phase="Running", **at)
    code, out, err = plugin("status", "chat", "-n", namespace)
    assert (code, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[lines.index("Progress") + 1 :][0] == "chat-a loading target 75% 0.00 of 0.00 MB"
    assert "━" not in out
    assert not any("chat-b loading" in line for line in lines)


def test_logs_of_all_pods_through_the_api_server(chat, namespace, pod, plugin, node):
    chat()
    asked = []

    def kubelet(path):
        asked.append(path)
        return f"first of {path.split('/')[3]}\n[bold]last[/bold]\n"

    name = node(kubelet)
    pod("chat-a", node=name, **RUNNING)
    pod("chat-b", node=name, **RUNNING)
    pod("chat-c")
    code, out, err = plugin("logs", "chat", "-n", namespace, "--tail", "7", "--since", "2m")
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == [
        "a [bold]last[/bold]",
        "a first of chat-a",
        "b [bold]last[/bold]",
        "b first of chat-b",
        "c (Pending: no lines)",
    ]
    assert "sinceSeconds=120" in asked[0]
    assert "tailLines=7" in asked[0]


def test_what_is_missing_is_reported(chat, namespace, plugin):
    chat()
    code, _, err = plugin("status", "chatt", "-n", namespace)
    assert code == 1
    assert f"no SpecDecodeDeployment chatt in namespace {namespace}; there are chat;" in err
    code, _, err = plugin("logs", "chat", "-n", namespace)
    assert code == 1
    assert "chat has no pods; `kubectl specdecode status chat" in err


def test_a_user_without_permission_gets_the_missing_one_named(plane, chat, namespace, plugin):
    chat()
    reader = plane.plane.kubeconfig_for("reader", "reader")
    code, _, err = plugin("status", "chat", "-n", namespace, file=reader)
    assert code == 1
    assert "may not read specdecodedeployments" in err
    assert "request the role view" in err


def test_a_cluster_without_the_definition_or_without_an_answer(plane, tmp_path, plugin):
    config = yaml.safe_load(plane.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    file = tmp_path / "gone"
    file.write_text(yaml.safe_dump(config))
    code, _, err = plugin("status", file=file)
    assert code == 1
    assert "no response from https://127.0.0.1:1" in err


def test_kubectl_finds_the_plugin(plane, tmp_path, chat, namespace):
    chat()
    script = tmp_path / "kubectl-specdecode"
    words = f'exec {sys.executable} -m specdecode_operator.plugin "$@"'
    script.write_text(f"#!/bin/sh\n{words}\n")
    script.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    environment["KUBECONFIG"] = str(plane.kubeconfig)
    command = [plane.programs / "kubectl", "specdecode", "status", "-n", namespace]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[1].split()[0] == "chat"


async def test_following_goes_on_with_pods_that_come_later(
    chat, plane, namespace, pod, node, kubeconfig
):
    chat()
    name = node(lambda path: f"from {path.split('/')[3]}\n")
    pod("chat-a", node=name, **RUNNING)
    observed: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    async with connect(str(plane.kubeconfig), None) as reader:
        wanted = Wanted(follow=True, previous=False, tail_lines=-1, since_s=None)
        write = lambda short, line: observed.put_nowait((short, line))  # noqa: E731
        task = asyncio.create_task(logs(reader, Scope("chat", namespace), wanted, write))
        assert await asyncio.wait_for(observed.get(), 30) == ("a", "from chat-a")
        pod("chat-b", node=name, **RUNNING)
        assert await asyncio.wait_for(observed.get(), 30) == ("b", "from chat-b")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert observed.empty()
