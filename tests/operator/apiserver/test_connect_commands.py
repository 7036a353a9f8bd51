"""`ui` and `chat` as processes: a real API server and real engines.

Without a kubelet nothing forwards a port: a program connects to the engines in place of kubectl,
but for what the API server refuses.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.engine.serve.echo_process import EchoProcess
from tests.operator.apiserver.conftest import RUNNING
from tests.operator.forwarding_kubectl import write_program
from tests.terminals import Terminal

pytestmark = pytest.mark.apiserver

TARGET = Path(__file__).parents[3] / "examples" / "models" / "target"
QUESTION = "the quick brown fox\n"


@pytest.fixture(scope="module")
def engines(tmp_path_factory, until):
    """One with the page, one without that needs an API key."""
    folder = tmp_path_factory.mktemp("engines")
    (folder / "keys").write_text("sk-canary\n")
    started = {
        "page": EchoProcess(TARGET, {}, 0.0, page=True),
        "plain": EchoProcess(TARGET, {}, 0.0, page=False, api_key_path=str(folder / "keys")),
    }
    for engine in started.values():
        engine.read_port()
        until(engine.is_ready)
    yield started
    for engine in started.values():
        engine.close()


@pytest.fixture
def start(plane, kubeconfig, namespace, tmp_path):
    """Start a command of the plugin where pods are ports of this machine."""
    processes = []

    def begin(*words, ports=None, file=plane.kubeconfig, **environment):
        given = os.environ | environment
        if ports is not None:
            given |= write_program(tmp_path / "bin", ports)
        else:
            given["PATH"] = f"{plane.programs}:{given['PATH']}"
        command = [sys.executable, "-m", "specdecode_operator.plugin", *words, "-n", namespace]
        process = subprocess.Popen(
            [*command, "--kubeconfig", str(file)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env=given,
        )  # fmt: skip
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def outcome(process, given=None):
    out, error = process.communicate(given, timeout=120)
    return process.returncode, out, error


def test_ui_forwards_the_page_until_it_is_interrupted(chat, pod, engines, start):
    chat()
    pod("chat-a", **RUNNING)
    process = start("ui", "chat", ports={"chat-a": engines["page"].port})
    line = process.stdout.readline()
    url, _, rest = line.partition(" ")
    assert (url[:17], rest) == ("http://127.0.0.1:", "is the page of pod chat-a; Ctrl-C ends\n")
    page = httpx.get(url)
    assert page.status_code == 200
    assert page.content == httpx.get(engines["page"].url).content
    process.send_signal(signal.SIGINT)
    assert outcome(process) == (130, "", "")
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


def test_ui_goes_on_with_another_pod_at_the_same_address(chat, pod, engines, start, until):
    chat()
    pod("chat-a", **RUNNING)
    pod("chat-b", **RUNNING)
    engine = EchoProcess(TARGET, {}, 0.0, page=True)
    engine.read_port()
    until(engine.is_ready)
    ports = {"chat-a": engine.port, "chat-b": engines["page"].port}
    process = start("ui", "chat", "--no-browser", ports=ports)
    url = process.stdout.readline().split()[0]
    engine.close()
    until(lambda: fetches(url))
    process.send_signal(signal.SIGINT)
    code, out, error = outcome(process)
    assert (code, out) == (130, "")
    assert error == "the connection to pod chat-a has ended; now to pod chat-b\n"


def fetches(url):
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False


def test_a_page_that_is_off_is_an_error_with_the_command(chat, namespace, pod, engines, start):
    chat()
    pod("chat-a", **RUNNING)
    code, out, error = outcome(start("ui", "chat", ports={"chat-a": engines["plain"].port}))
    assert (code, out) == (1, "")
    assert "serving.page is false" in error
    command = f"kubectl patch sdd chat -n {namespace} --type merge -p"
    assert command in error


def test_without_a_usable_engine_both_commands_state_why(chat, namespace, pod, start):
    chat()
    for command in ("ui", "chat"):
        code, out, error = outcome(start(command, "chat", ports={}))
        assert (code, out) == (1, "")
        assert "no engine pod of chat is ready: Not reconciled" in error
        code, _, error = outcome(start(command, "other", ports={}))
        assert code == 1
        assert f"no SpecDecodeDeployment other in namespace {namespace}; there are chat" in error
        code, _, error = outcome(start(command, "chat", "--context", "moon", ports={}))
        assert code == 1
        assert "kubectl config get-contexts" in error
    pod("chat-a")
    code, _, error = outcome(start("ui", "chat", ports={}))
    assert "pod chat-a is Pending" in error
    pod("chat-b", **RUNNING)
    code, _, error = outcome(start("ui", "chat", ports={}))
    assert (code, "Traceback" in error) == (1, False)
    assert 'pods "chat-b" not found' in error


def test_a_chat_is_that_of_the_engine(chat, pod, engines, start):
    chat()
    pod("chat-a", **RUNNING)
    flags = ("--temperature", "0", "--max-tokens", "12")
    process = start("chat", "chat", *flags, ports={"chat-a": engines["page"].port})
    code, out, error = outcome(process, QUESTION)
    url = engines["page"].url
    own = [sys.executable, "-m", "specdecode_engine", "chat", url, *flags]
    direct = subprocess.run(own, input=QUESTION, capture_output=True, text=True, check=True)
    assert (code, error) == (0, "")
    assert without_times(out) == without_times(direct.stdout)
    assert "12 tokens" in out


def without_times(text):
    return re.sub(r"[\d.]+ tokens/s|after \d+ ms", "", text)


def test_a_key_comes_from_the_environment_and_is_never_shown(chat, pod, engines, start):
    chat()
    pod("chat-a", **RUNNING)
    ports = {"chat-a": engines["plain"].port}
    code, out, error = outcome(start("chat", "chat", ports=ports), QUESTION)
    assert (code, out) == (1, "")
    assert "status 401" in error
    assert "set SPECDECODE_API_KEY" in error
    process = start(
        "chat", "chat", "--max-tokens", "5", ports=ports, SPECDECODE_API_KEY="sk-canary"
    )
    code, out, error = outcome(process, QUESTION)
    assert (code, error) == (0, "")
    assert "5 tokens" in out
    assert "canary" not in out


def test_a_chat_goes_on_with_another_pod(
    plane, kubeconfig, chat, namespace, pod, engines, tmp_path, until
):
    """In a terminal: a message that fails is reported, and the next one goes to another pod."""
    chat()
    pod("chat-a", **RUNNING)
    pod("chat-b", **RUNNING)
    engine = EchoProcess(TARGET, {}, 0.0)
    engine.read_port()
    until(engine.is_ready)
    ports = {"chat-a": engine.port, "chat-b": engines["page"].port}
    environment = os.environ | write_program(tmp_path / "bin", ports)
    words = ["chat", "chat", "--max-tokens", "9", "-n", namespace]
    command = [sys.executable, "-m", "specdecode_operator.plugin", *words]
    terminal = Terminal([*command, "--kubeconfig", str(plane.kubeconfig)], environment)
    terminal.read_until("> ")
    terminal.write(QUESTION)
    terminal.read_until("9 tokens")
    engine.close()
    terminal.read_until("> ")
    terminal.write(QUESTION)
    terminal.read_until("cut off")
    terminal.read_until("> ")
    terminal.write(QUESTION)
    terminal.read_until("now to pod chat-b")
    terminal.read_until("9 tokens")
    assert terminal.exit() == 0


def test_a_missing_permission_is_named_by_the_real_kubectl(plane, chat, api, namespace, pod, start):
    """May read resources and pods, as the role view, but not forward a port."""
    chat()
    pod("chat-a", **RUNNING)
    rules = [
        {"apiGroups": ["specdecode.io"], "resources": ["*"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
    ]
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    body = {"metadata": {"name": "viewer"}, "rules": rules}
    api.client.post(f"{path}/roles", json=body).raise_for_status()
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "viewer"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "viewer"}
    body = {"metadata": {"name": "viewer"}, "roleRef": role, "subjects": [subject]}
    api.client.post(f"{path}/rolebindings", json=body).raise_for_status()
    viewer = plane.plane.kubeconfig_for("viewer", "viewer")
    code, out, error = outcome(start("ui", "chat", file=viewer))
    assert (code, out) == (1, "")
    assert "pods/portforward" in error
    assert "request the role edit" in error
