"""`kubectl specdecode report` against a real API server, with an engine that this file plays."""

import contextlib
import http.server
import socket
import threading

import pytest
from prometheus_client import generate_latest

from specdecode_api import names
from specdecode_api.metrics import speculation
from specdecode_engine.stats.prometheus import EngineMetrics
from specdecode_engine.stats.snapshot import CoreSnapshot
from specdecode_operator.objects.kinds import POD, RESOURCE, SERVICE_ACCOUNT, TRIAL
from specdecode_operator.owned.labels import pod_labels
from specdecode_operator.plugin.__main__ import main

pytestmark = pytest.mark.apiserver

ACTIVITY = {
    "until": "2026-11-21T12:00:00Z",
    "tokensPerSecond": [120, 140],
    "acceptLengthHundredths": [250, 260],
    "draftSteps": [{"from": 1, "tenths": [30, 20]}],
}


@pytest.fixture
def report(plane, kubeconfig, capfdbinary):
    """Run the command as an administrator; the CRDs are there once `kubeconfig` is."""

    def run(*words, file=plane.kubeconfig):
        code = main(["report", *map(str, words), "--kubeconfig", str(file)])
        written = capfdbinary.readouterr()
        return code, written.out.decode(), written.err.decode()

    return run


@pytest.fixture
def engine(api, namespace):
    """A pod of `chat` whose engine has counted positions and steps."""
    counted = CoreSnapshot(
        {
            speculation.POSITION_REACHED: {("1", "1"): 100, ("1", "2"): 50},
            speculation.POSITION_ACCEPTED: {("1", "1"): 50, ("1", "2"): 25},
            speculation.BUCKET_STEPS: {("1", "2"): 100},
        }
    )
    text = generate_latest(EngineMetrics(lambda: counted).registry)
    address = own_address()

    class Engine(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == names.PATH_METRICS else 404)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            """Log nothing."""

    with http.server.ThreadingHTTPServer((address, 0), Engine) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        create_pod(api, namespace, address, server.server_address[1])
        yield
        server.shutdown()
        thread.join()


def own_address():
    """An address of this machine that is not loopback, which the API server does not proxy to."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing
        return probe.getsockname()[0]


def create_pod(api, namespace, address, port):
    api.client.post(SERVICE_ACCOUNT.path(namespace), json={"metadata": {"name": "default"}})
    ports = [{"name": "management", "containerPort": port}]
    containers = [{"name": "engine", "image": "none", "ports": ports}]
    metadata = {"name": "chat-a", "namespace": namespace, "labels": pod_labels("chat")}
    api.create(POD, {"metadata": metadata, "spec": {"containers": containers}})
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
    api.merge(POD, namespace, "chat-a", {"status": status}, "/status")


def create_trial(api, namespace, name, deployment):
    api.create(
        TRIAL,
        {
            "apiVersion": TRIAL.api_version,
            "kind": TRIAL.kind,
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"deployment": deployment, "candidate": {"pageSize": 32}},
        },
    )
    status = {
        "phase": "Ended", "strategy": "Hot", "verdict": "RolledBack", "reason": "Slower",
        "message": "<b>9 %</b> slower",
        "interval": {"gain": "-0.09", "low": "-0.12", "high": "-0.06"},
    }  # fmt: skip
    api.merge(TRIAL, namespace, name, {"status": status}, "/status")


def test_a_report_of_a_resource_with_trials_history_and_a_running_engine(
    chat, api, namespace, engine, report
):
    chat()
    api.merge(RESOURCE, namespace, "chat", {"status": {"activity": ACTIVITY}}, "/status")
    create_trial(api, namespace, "chat-one", "chat")
    create_trial(api, namespace, "other-one", "other")
    code, page, err = report("chat", "-n", namespace)
    assert (code, err) == (0, "")
    assert page.startswith("<!DOCTYPE html>")
    assert "Source: status.activity." in page
    assert "Source: counters of 1 of 1 engines since their start." in page
    assert "Trial chat-one" in page
    assert "other-one" not in page
    assert "&lt;b&gt;9 %&lt;/b&gt; slower" in page
    assert "-9.0%" in page


def test_a_report_states_what_its_user_may_not_read(chat, namespace, engine, report, kubeconfig):
    chat()
    code, page, _ = report("chat", "-n", namespace, file=kubeconfig)
    assert code == 0
    assert "The engines cannot be read: " in page
    assert "may not read" in page


def test_a_report_of_an_unknown_resource_or_with_a_wrong_prometheus_is_an_error(
    chat, namespace, report
):
    chat()
    code, page, err = report("chatt", "-n", namespace)
    assert (code, page) == (1, "")
    assert f"no SpecDecodeDeployment chatt in namespace {namespace}" in err
    code, page, err = report("chat", "-n", namespace, "--prometheus", "http://127.0.0.1:1")
    assert (code, page) == (1, "")
    assert "http://127.0.0.1:1/api/v1/query_range: no response: " in err
    assert len(err.splitlines()) == 1


def test_a_report_on_a_full_disk_is_an_error(chat, namespace, report, monkeypatch):
    chat()
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        code, _, err = report("chat", "-n", namespace)
        assert (code, err) == (
            1,
            "kubectl specdecode: cannot write the output: [Errno 28] No space left on device\n",
        )
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()
