"""A real API server, the chart's own rights on it, and operators that have no others.

The garbage collector runs too; no other controller does, so tests play the kubelet and the
Deployment controller themselves.
"""

import itertools
import os
import socket
import ssl
import subprocess
import sys
import time
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from localnode.kubeconfig import token_kubeconfig
from specdecode_api import names
from specdecode_operator.cluster.cache import Cache
from specdecode_operator.cluster.cluster import connect
from specdecode_operator.cluster.metrics import Metrics
from specdecode_operator.engines.engine_client import open_engine_client
from specdecode_operator.engines.engine_poller import EnginePoller
from specdecode_operator.objects import kinds
from specdecode_operator.objects.kinds import ResourceKind
from specdecode_operator.objects.observed import Key
from specdecode_operator.owned.labels import pod_labels
from specdecode_operator.process.resync import Resync
from specdecode_operator.reconcile import Reconciler
from specdecode_operator.settings import Settings

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "specdecode"
SYSTEM = "specdecode-system"
DEADLINE_S = 60.0
RBAC = "rbac.authorization.k8s.io"

DEFINITION = ResourceKind(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", ()
)
RIGHTS = {
    "ServiceAccount": kinds.SERVICE_ACCOUNT,
    "CustomResourceDefinition": DEFINITION,
    "ClusterRole": ResourceKind(RBAC, "v1", "ClusterRole", "clusterroles", ()),
    "ClusterRoleBinding": ResourceKind(RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings", ()),
    "Role": ResourceKind(RBAC, "v1", "Role", "roles", ()),
    "RoleBinding": ResourceKind(RBAC, "v1", "RoleBinding", "rolebindings", ()),
}


RUNNING = {
    "phase": "Running",
    "conditions": [{"type": "Ready", "status": "True"}],
    "containerStatuses": [
        {"name": "engine", "state": {"running": {}}, "ready": True, "started": True,
         "restartCount": 0, "image": "none", "imageID": "none"}
    ],
}  # fmt: skip


@pytest.fixture(scope="session")
def until():
    """Ask until the answer is true, or fail with the last answer or error."""

    def ask(probe):
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                answer = probe()
                if answer:
                    return answer
            except (
                AssertionError,
                LookupError,
                TypeError,
                StopIteration,
                httpx.HTTPError,
            ) as error:
                answer = error
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {DEADLINE_S} s; last: {answer!r}")
            time.sleep(0.05)

    return ask


@dataclass(frozen=True)
class Api:
    """Plain requests to the API server, as an administrator."""

    client: httpx.Client

    def get(self, kind, namespace, name):
        answer = self.client.get(kind.path(namespace, name))
        return None if answer.status_code == 404 else self._body(answer)

    def items(self, kind, namespace, selector=None):
        query = {"labelSelector": selector} if selector else {}
        return self._body(self.client.get(kind.path(namespace), params=query))["items"]

    def create(self, kind, manifest):
        namespace = manifest["metadata"].get("namespace")
        return self._body(self.client.post(kind.path(namespace), json=manifest))

    def merge(self, kind, namespace, name, patch, subresource=""):
        """Edit an object as a person with kubectl would."""
        return self._body(
            self.client.patch(
                kind.path(namespace, name) + subresource,
                params={"fieldManager": "somebody"},
                json=patch,
                headers={"Content-Type": "application/merge-patch+json"},
            )
        )

    def delete(self, kind, namespace, name):
        self._body(self.client.delete(kind.path(namespace, name)))

    @staticmethod
    def _body(answer):
        assert answer.is_success, answer.text
        return answer.json()


@pytest.fixture(scope="session")
def start_plane(tmp_path_factory):
    """Start private API servers with the controllers of these names, alive while a body runs."""
    cluster = str(ROOT / "cluster")
    if cluster not in sys.path:
        sys.path.insert(0, cluster)
    from localnode.controlplane import ApiServer
    from localnode.paths import Paths
    from localnode.tools import missing_programs

    missing = missing_programs(Paths.from_environment())
    if missing and os.environ.get("CI"):
        pytest.fail(f"run `make cluster-tools` first: {[tool.name for tool in missing]} missing")
    return lambda *controllers: ApiServer.start(
        tmp_path_factory.mktemp("plane"), controllers=controllers
    )


@pytest.fixture(scope="session")
def plane(start_plane):
    """A private API server, with the garbage collector."""
    with start_plane("garbage-collector-controller") as server:
        yield server


@pytest.fixture(scope="session")
def open_api():
    """Ask an API server as an administrator, while a body runs."""

    @contextmanager
    def opened(plane):
        context = ssl.create_default_context(cafile=str(plane.authority_file))
        headers = {"Authorization": f"Bearer {plane.admin_token}"}
        with httpx.Client(
            base_url=plane.url, headers=headers, verify=context, timeout=30
        ) as client:
            yield Api(client)

    return opened


@pytest.fixture(scope="session")
def api(plane, open_api):
    with open_api(plane) as opened:
        yield opened


@pytest.fixture(scope="session")
def template(plane):
    """Render the chart; returns its manifests."""

    def render(*flags):
        command = [plane.programs / "helm", "template", "specdecode", CHART, "-n", SYSTEM, *flags]
        rendered = subprocess.run(command, check=True, capture_output=True, text=True)
        return [each for each in yaml.safe_load_all(rendered.stdout) if each]

    return render


@pytest.fixture(scope="session")
def grant_on(tmp_path_factory, until):
    """Create a chart's accounts, rights and definition; returns a kubeconfig with its rights."""
    folder = tmp_path_factory.mktemp("kubeconfig")
    numbers = itertools.count()

    def kubeconfig_for(plane, api, manifests):
        api.client.post("/api/v1/namespaces", json={"metadata": {"name": SYSTEM}})
        for manifest in manifests:
            is_hook = "helm.sh/hook" in (manifest["metadata"].get("annotations") or {})
            if manifest["kind"] in RIGHTS and not is_hook:
                api.create(RIGHTS[manifest["kind"]], manifest)
        account = next(each for each in manifests if each["kind"] == "Deployment")["spec"][
            "template"
        ]["spec"]["serviceAccountName"]
        path = kinds.SERVICE_ACCOUNT.path(SYSTEM, account) + "/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = api.client.post(path, json=request).json()["status"]["token"]
        until(lambda: api.client.get(kinds.RESOURCE.path(None)).is_success)
        file = folder / f"{next(numbers)}.kubeconfig"
        file.write_text(yaml.safe_dump(token_kubeconfig(plane.url, plane.authority_file, token)))
        return file

    return kubeconfig_for


@pytest.fixture(scope="session")
def grant(api, plane, grant_on):
    """The same on the session's API server."""
    return lambda manifests: grant_on(plane, api, manifests)


@pytest.fixture(scope="session")
def kubeconfig(grant, template):
    """Credentials with the rights that the chart grants by default, and no others."""
    return grant(template())


_identities = itertools.count(1)


@dataclass
class Operator:
    """An operator in a process of its own."""

    kubeconfig: Path
    log: Path
    arguments: tuple[str, ...] = ("--all-namespaces",)
    lease: str = "specdecode-operator"
    identity: str = field(default_factory=lambda: f"operator-{next(_identities)}")
    ports: tuple[int, int] = field(default_factory=lambda: _free_ports())
    _process: subprocess.Popen[bytes] | None = None

    @property
    def process(self):
        assert self._process is not None, "not started"
        return self._process

    def start(self, until):
        """Start it, and wait until it has listed everything."""
        health, metrics = self.ports
        command = [sys.executable, "-m", "specdecode_operator", "run", *self.arguments]
        command += [
            "--kubeconfig",
            str(self.kubeconfig),
            "--engine-image",
            "specdecode-engine:test",
        ]
        command += ["--lease-namespace", SYSTEM, "--lease-name", self.lease]
        command += ["--identity", self.identity]
        command += ["--health-port", str(health), "--metrics-port", str(metrics)]
        with self.log.open("a") as log:
            self._process = subprocess.Popen(command, stderr=log, stdout=log)
        until(lambda: self._is_up())

    @property
    def is_running(self):
        return self._process is not None and self._process.poll() is None

    def _is_up(self):
        assert self.process.poll() is None, self.log.read_text()
        return httpx.get(f"http://127.0.0.1:{self.ports[0]}/healthz").status_code == 200

    def kill(self):
        """Kill it without warning."""
        self.process.kill()
        self.process.wait()

    def stop(self):
        """Stop it as Kubernetes would; returns the exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(timeout=25)

    def metric(self, name, **labels):
        """Sum of a metric's samples that have these labels."""
        text = httpx.get(f"http://127.0.0.1:{self.ports[1]}/metrics").text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == f"specdecode_operator_{name}"
            and labels.items() <= sample.labels.items()
        )


def _free_ports():
    sockets = [socket.socket() for _ in range(2)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = tuple(each.getsockname()[1] for each in sockets)
    for each in sockets:
        each.close()
    return ports


@pytest.fixture(scope="session")
def make_operator():
    """Describe an operator that is not started yet; a failed test's does not outlive the tests."""
    made = []

    def make(*arguments):
        made.append(Operator(*arguments))
        return made[-1]

    yield make
    for each in made:
        if each.is_running:
            each.kill()


@pytest.fixture(scope="session")
def _numbers():
    return itertools.count(1)


@pytest.fixture
def namespace(api, _numbers):
    """A namespace of this test alone."""
    name = f"test-{next(_numbers)}"
    api.client.post("/api/v1/namespaces", json={"metadata": {"name": name}}).raise_for_status()
    return name


@pytest.fixture
def chat(api, namespace, example):
    """Create the example in the test's namespace."""

    def create(name="chat", **spec):
        manifest = example(**spec)
        manifest["metadata"] = {"name": name, "namespace": namespace}
        return api.create(kinds.RESOURCE, manifest)

    return create


@pytest.fixture
def pod(api, namespace):
    """Create an engine pod with a status."""
    api.client.post(kinds.SERVICE_ACCOUNT.path(namespace), json={"metadata": {"name": "default"}})

    def create(name, port=8001, node=None, **status):
        engine = {
            "name": "engine",
            "image": "none",
            "ports": [{"name": "management", "containerPort": port}],
        }
        spec = {"containers": [engine]} | ({"nodeName": node} if node else {})
        metadata = {
            "name": name,
            "labels": pod_labels("chat"),
            "annotations": {names.ANNOTATION_CONFIG_HASH: "v1-new"},
        }
        manifest = {"metadata": metadata | {"namespace": namespace}, "spec": spec}
        api.create(kinds.POD, manifest)
        return api.merge(kinds.POD, namespace, name, {"status": status}, "/status")

    return create


@pytest.fixture
def condition(api, namespace):
    """Status, reason and message of a condition."""

    def read(kind, name="chat"):
        resource = api.get(kinds.RESOURCE, namespace, name)
        status = resource["status"]
        assert status["observedGeneration"] == resource["metadata"]["generation"]
        found = next(each for each in status["conditions"] if each["type"] == kind)
        return found["status"], found["reason"], found["message"]

    return read


@pytest.fixture
def versions(api, namespace):
    """Versions of the resource and all its children: equal means that nobody wrote."""

    def read():
        return {
            (kind.kind, each["metadata"]["name"]): each["metadata"]["resourceVersion"]
            for kind in (kinds.RESOURCE, *kinds.CHILDREN)
            for each in api.items(kind, namespace)
        }

    return read


@pytest.fixture
def events(api, namespace):
    """Reasons of the events about a resource."""

    def read(name="chat"):
        found = api.items(kinds.EVENT, namespace)
        return sorted(
            each["reason"]
            for each in found
            if each["involvedObject"]["kind"] == names.KIND
            and each["involvedObject"]["name"] == name
        )

    return read


@pytest.fixture
def parts(kubeconfig, namespace):
    """Cache, resync and reconciler, wired as `run` wires them, with nothing running."""

    @asynccontextmanager
    async def wired(
        now=lambda: datetime.now(UTC),
        engine_port=names.MANAGEMENT_PORT,
        credentials=kubeconfig,
        **more,
    ):
        metrics = Metrics("test")
        settings = Settings(engine_image="specdecode-engine:test", namespaces=(namespace,), **more)
        added: list[Key] = []
        async with (
            connect(str(credentials), metrics, 30) as cluster,
            open_engine_client(engine_port) as engines,
        ):
            requests = _recorded(cluster)
            cache = Cache()
            resync = Resync(
                cluster,
                cache,
                settings.namespaces,
                added.append,
                lambda key, _: added.append(key),
                metrics,
                time.monotonic,
            )
            reconciler = Reconciler(
                cluster,
                cache,
                settings,
                metrics,
                now,
                EnginePoller(engines, time.monotonic),
            )
            yield SimpleNamespace(
                cluster=cluster,
                cache=cache,
                resync=resync,
                reconcile=reconciler.reconcile,
                requests=requests,
                added=added,
                metrics=metrics,
            )

    return wired


def _recorded(cluster):
    """Note the method of every request; `fail_at` makes the n-th from now fail."""
    requests = SimpleNamespace(methods=[], fail_at=None)
    send = cluster.api._text

    async def noted(method, *arguments, **options):
        requests.methods.append(method)
        answer = await send(method, *arguments, **options)
        if requests.fail_at is not None and len(requests.methods) >= requests.fail_at:
            requests.fail_at = None
            raise ConnectionError("the answer got lost")
        return answer

    cluster.api._text = noted
    return requests
