"""The whole node does what a node does: it runs pods, names Services, and lets one look inside."""

import json
import os
import subprocess
import uuid
from collections.abc import Iterator

import pytest

from localnode import containerd, lifecycle, tools
from localnode.images import IMAGES
from localnode.paths import Paths
from localnode.status import part_statuses

pytestmark = pytest.mark.node

_SERVER = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8000)"
_ASK = """
import time, urllib.request
deadline = time.monotonic() + 20  # a pod is Ready a moment before its Service leads to it
while True:
    try:
        print(urllib.request.urlopen("http://{host}/", timeout=5).status)
        break
    except urllib.error.URLError:
        if time.monotonic() > deadline:
            raise
        time.sleep(0.1)
"""

absent = pytest.fail if os.environ.get("CI") else pytest.skip
"""In CI a missing part is a failure."""


@pytest.fixture(scope="module")
def paths() -> Paths:
    paths = Paths.from_environment()
    if not lifecycle.is_healthy(paths, lifecycle.WHOLE_NODE):
        absent("no node is up: `localnode up`")
    if IMAGES[0].reference not in containerd.ctr(paths, "images", "list", "--quiet").split():
        absent("the operator image is not loaded: `localnode images`")
    return paths


@pytest.fixture(scope="module")
def namespace(paths: Paths) -> Iterator[str]:
    name = f"node-test-{uuid.uuid4().hex[:8]}"
    _kubectl(paths, "create", "namespace", name)
    yield name
    _kubectl(paths, "delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="module")
def web(paths: Paths, namespace: str) -> str:
    """A pod that serves, on a file system that it cannot write, and its Service."""
    container = {
        "name": "web",
        "image": IMAGES[0].name,
        "command": ["python", "-c", _SERVER],
        "readinessProbe": {"httpGet": {"port": 8000}, "periodSeconds": 1},
        "resources": {"limits": {"cpu": "500m", "memory": "128Mi"}},
        "securityContext": {
            "runAsNonRoot": True,
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "server", "labels": {"app": "web"}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8000}]},
    }
    for manifest in (pod, service):
        _kubectl(paths, "-n", namespace, "apply", "-f", "-", stdin=json.dumps(manifest))
    _kubectl(paths, "-n", namespace, "wait", "--for=condition=Ready", "pod/server", "--timeout=90s")
    return "server"


def _kubectl(paths: Paths, *words: str, stdin: str = "") -> str:
    program = tools.programs(paths) / "kubectl"
    command = [str(program), "--kubeconfig", str(paths.kubeconfig), *words]
    done = subprocess.run(command, capture_output=True, text=True, input=stdin, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_part_runs_and_the_node_is_ready(paths: Paths) -> None:
    assert {part.state for part in part_statuses(paths)} == {"running"}
    conditions = "jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}"
    assert _kubectl(paths, "get", "nodes", "-o", conditions) == "True"


def test_a_service_is_found_by_its_name(paths: Paths, namespace: str, web: str) -> None:
    for host in ("web", f"web.{namespace}", f"web.{namespace}.svc.cluster.local"):
        ask = ["exec", web, "--", "python", "-c", _ASK.format(host=host)]
        assert _kubectl(paths, "-n", namespace, *ask) == "200\n"


def test_logs_are_read_back(paths: Paths, namespace: str, web: str) -> None:
    assert "GET / HTTP" in _kubectl(paths, "-n", namespace, "logs", web)


def test_pods_run_as_nobody_in_particular(paths: Paths, namespace: str, web: str) -> None:
    assert _kubectl(paths, "-n", namespace, "exec", web, "--", "id", "-u") == "65532\n"


def test_the_operator_image_has_no_torch(paths: Paths, namespace: str, web: str) -> None:
    ask = "import importlib.util as u; print(u.find_spec('torch'), bool(u.find_spec('kopf')))"
    answer = _kubectl(paths, "-n", namespace, "exec", web, "--", "python", "-c", ask)
    assert answer == "None True\n"
