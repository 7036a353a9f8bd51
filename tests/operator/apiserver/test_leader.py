"""Leader election between operator processes, and permissions that go and come back."""

import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import pytest

from specdecode_operator.objects.kinds import DEPLOYMENT, LEASE, RESOURCE, SERVICE, ResourceKind
from tests.operator.apiserver.conftest import Api, Operator

pytestmark = pytest.mark.apiserver

TAKEOVER_S = 20.0
SYSTEM = "specdecode-system"
ROLE_BINDING = ResourceKind("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", ())


@pytest.fixture
def operators(kubeconfig, tmp_path, make_operator, until, namespace):
    """Start operators, each in a process of its own; all are ended with the test."""
    started: list[Operator] = []

    def start():
        arguments = ("--namespace", namespace)
        operator = make_operator(kubeconfig, tmp_path / f"log{len(started)}", arguments)
        started.append(operator)
        operator.start(until)
        return operator

    yield start
    for operator in started:
        if operator.process.poll() is None:
            assert operator.stop() == 0
        log = operator.log.read_text()
        assert "Traceback" not in log, log
        assert "is forbidden" not in log, log


def is_leader(operator):
    return operator.metric("leader") == 1


def holder(api):
    return api.get(LEASE, "specdecode-system", "specdecode-operator")["spec"]["holderIdentity"]


def test_one_works_and_the_other_takes_over_when_it_is_killed(
    operators, api, namespace, chat, until, versions
):
    first = operators()
    until(lambda: is_leader(first))
    second = operators()
    chat(replicas=2)
    until(lambda: api.get(RESOURCE, namespace, "chat")["status"]["address"])
    assert holder(api) == first.identity
    assert not is_leader(second)
    assert second.metric("apply_total") == second.metric("status_write_total") == 0
    assert second.metric("watch_event_total") > 0  # it watches, to know when it has to work
    assert httpx.get(f"http://127.0.0.1:{second.ports[0]}/healthz").status_code == 200

    before = versions()
    first.kill()
    api.merge(RESOURCE, namespace, "chat", {"metadata": {"annotations": {"while": "nobody works"}}})
    began_s = time.monotonic()
    until(lambda: is_leader(second))
    took_s = time.monotonic() - began_s
    assert took_s <= TAKEOVER_S
    assert holder(api) == second.identity
    api.delete(SERVICE, namespace, "chat")
    until(lambda: api.get(SERVICE, namespace, "chat"))
    after = versions()
    rewritten = {
        key
        for key, version in after.items()
        if version != before[key]
        and key not in {("SpecDecodeDeployment", "chat"), ("Service", "chat")}
    }
    assert rewritten == set()  # what the first has written is not written again
    print(f"took over after {took_s:.1f} s")


def test_control_is_back_within_20_s_when_the_leader_of_two_is_killed(
    operators, api, namespace, chat, until
):
    """Measured to the effect: edits that no operator saw have reached every Deployment."""
    named = [f"chat-{number}" for number in range(10)]
    pair = operators(), operators()
    until(lambda: any(is_leader(each) for each in pair))
    for name in named:
        chat(name, replicas=1)
    until(lambda: all(api.get(DEPLOYMENT, namespace, name) for name in named))
    leader, standby = pair if is_leader(pair[0]) else pair[::-1]
    assert not is_leader(standby)

    leader.kill()
    killed_s = time.monotonic()
    for name in named:
        api.merge(RESOURCE, namespace, name, {"spec": {"replicas": 3}})
    api.delete(SERVICE, namespace, named[0])
    chat("new")

    def is_controlled():
        replicas = {api.get(DEPLOYMENT, namespace, name)["spec"]["replicas"] for name in named}
        return (
            replicas == {3}
            and api.get(SERVICE, namespace, named[0])
            and api.get(DEPLOYMENT, namespace, "new")
        )

    until(is_controlled)
    took_s = time.monotonic() - killed_s
    print(f"control was back {took_s:.1f} s after the leader was killed")
    assert took_s <= TAKEOVER_S
    assert holder(api) == standby.identity


def test_a_clean_end_hands_over_at_once(operators, api, namespace, chat, until):
    first = operators()
    until(lambda: is_leader(first))
    second = operators()
    began_s = time.monotonic()
    assert first.stop() == 0
    until(lambda: is_leader(second))
    assert time.monotonic() - began_s < 10
    chat()
    until(lambda: api.get(DEPLOYMENT, namespace, "chat"))


def test_a_leader_whose_lease_is_taken_stands_by_until_it_expires(
    operators, api, namespace, chat, until
):
    first = operators()
    until(lambda: is_leader(first))
    chat()
    until(lambda: api.get(SERVICE, namespace, "chat"))
    api.merge(
        LEASE,
        SYSTEM,
        "specdecode-operator",
        {"spec": {"holderIdentity": "somebody", "leaseDurationSeconds": 5}},
    )
    until(lambda: not is_leader(first))
    api.delete(SERVICE, namespace, "chat")
    assert "lost the lease" in first.log.read_text()
    until(lambda: is_leader(first))
    until(lambda: api.get(SERVICE, namespace, "chat"))
    assert first.process.poll() is None
    assert holder(api) == first.identity


@dataclass(frozen=True)
class Release:
    """An operator with accounts and roles of its own, which a test may withdraw."""

    api: Api
    name: str
    operator: Operator

    @contextmanager
    def without(self, kind, name, namespace):
        """Delete a binding; it is created again after the body."""
        binding = self.api.get(kind, namespace, name)
        self.api.delete(kind, namespace, name)
        try:
            yield
        finally:
            metadata = {"name": name, "namespace": namespace}
            self.api.create(kind, {**binding, "metadata": metadata})

    def without_lease_permission(self):
        return self.without(ROLE_BINDING, f"{self.name}-lease", SYSTEM)

    def without_permissions(self, namespace):
        return self.without(ROLE_BINDING, self.name, namespace)

    def denied(self):
        return self.operator.metric("api_error_total", code="403")


@pytest.fixture
def release(api, kubeconfig, grant, template, make_operator, tmp_path, namespace):
    """Accounts and roles of its own; `kubeconfig` has installed the CRD."""
    name = f"own-{namespace}"
    flags = f"fullnameOverride={name},crds.install=false,rbac.aggregate=false"
    manifests = template("--set", f"{flags},watchNamespaces={{{namespace}}}")
    operator = make_operator(grant(manifests), tmp_path / "log", ("--namespace", namespace), name)
    yield Release(api, name, operator)
    assert operator.stop() == 0, operator.log.read_text()
    assert "Traceback" not in operator.log.read_text()


def test_a_leader_works_on_while_the_lease_is_denied_for_seconds(
    release, api, namespace, chat, until
):
    """Like an API server that has just started and has not read the roles yet."""
    operator = release.operator
    operator.start(until)
    until(lambda: is_leader(operator))
    with release.without_lease_permission():
        until(lambda: release.denied() >= 2)
        chat()
        until(lambda: api.get(DEPLOYMENT, namespace, "chat"))
        assert is_leader(operator)
    path = (LEASE, SYSTEM, release.name)
    denied = api.get(*path)
    until(lambda: api.get(*path)["spec"]["renewTime"] > denied["spec"]["renewTime"])
    assert is_leader(operator)
    assert api.get(*path)["spec"]["leaseTransitions"] == denied["spec"]["leaseTransitions"]
    assert "lost the lease" not in operator.log.read_text()


def test_a_leader_that_is_denied_the_lease_for_long_stops_working_and_comes_back(
    release, api, namespace, chat, until
):
    operator = release.operator
    operator.start(until)
    chat()
    until(lambda: api.get(SERVICE, namespace, "chat"))
    with release.without_lease_permission():
        until(lambda: not is_leader(operator))
        seen, applied = (operator.metric(f"{name}_total") for name in ("watch_event", "apply"))
        api.delete(SERVICE, namespace, "chat")
        until(lambda: operator.metric("watch_event_total") > seen)
        denied = release.denied()
        until(lambda: release.denied() >= denied + 2)  # a worker would have acted long ago
        assert operator.metric("apply_total") == applied
        assert api.get(SERVICE, namespace, "chat") is None
    until(lambda: is_leader(operator))
    until(lambda: api.get(SERVICE, namespace, "chat"))


def test_a_start_waits_for_permissions_that_come_late(release, until, namespace):
    operator = release.operator
    with release.without_lease_permission(), release.without_permissions(namespace):
        operator.start(lambda _: None)
        until(lambda: "this account may not" in operator.log.read_text())
        assert operator.process.poll() is None
    until(lambda: is_leader(operator))


def test_denied_writes_are_retried_for_seconds_before_the_status_reports_them(
    release, api, namespace, chat, until, condition
):
    operator = release.operator
    operator.start(until)
    chat()
    until(lambda: condition("Ready")[1] == "Starting")
    service = (SERVICE, namespace, "chat")

    def deny_until(is_enough):
        with release.without_permissions(namespace):
            api.delete(*service)
            until(is_enough)
            assert is_leader(operator)
        until(lambda: api.get(*service))

    denied = release.denied()
    deny_until(lambda: release.denied() >= denied + 2)
    assert "ApplyFailed" not in operator.log.read_text()
    deny_until(lambda: "ApplyFailed" in operator.log.read_text())
    until(lambda: condition("Ready")[1] == "Starting")


def test_the_same_pod_goes_on_at_once_after_a_crash(operators, api, until):
    first = operators()
    until(lambda: is_leader(first))
    before = first.log.read_text().count("standing by")
    changes = api.get(LEASE, "specdecode-system", "specdecode-operator")["spec"]["leaseTransitions"]
    first.kill()
    first.start(until)
    until(lambda: is_leader(first))
    assert first.log.read_text().count("standing by") == before
    spec = api.get(LEASE, "specdecode-system", "specdecode-operator")["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == (first.identity, changes)


@pytest.mark.parametrize("verb", ["create", "get", "update"])
def test_without_a_right_on_leases_it_ends_and_names_it(
    verb, kubeconfig, grant, template, namespace, api
):
    """The verbs that the chart grants are those that it takes."""
    name = f"lacks-{verb}-{namespace}"
    manifests = template(
        "--set", f"fullnameOverride={name},crds.install=false,rbac.aggregate=false"
    )
    for manifest in manifests:
        if manifest["kind"] == "Role" and manifest["metadata"]["name"] == f"{name}-lease":
            for rule in manifest["rules"]:
                rule["verbs"] = [each for each in rule["verbs"] if each != verb]
            manifest["rules"] = [rule for rule in manifest["rules"] if rule["verbs"]]
    file = grant(manifests)
    if verb == "update":  # one that ran out, which a newcomer would take over
        spec = {"holderIdentity": "", "leaseDurationSeconds": 1}
        metadata = {"name": name, "namespace": "specdecode-system"}
        api.create(LEASE, {"metadata": metadata, "spec": spec})
    words = ["run", "--all-namespaces", "--kubeconfig", str(file), "--engine-image", "none"]
    words += ["--lease-namespace", "specdecode-system", "--lease-name", name]
    words += ["--health-port", "0", "--metrics-port", "0", "--start-timeout-seconds", "0"]
    ended = subprocess.run(
        [sys.executable, "-m", "specdecode_operator", *words],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1, ended.stderr
    assert f"may not {verb} leases.coordination.k8s.io" in ended.stderr
    assert "--no-leader-election" in ended.stderr
    assert "Traceback" not in ended.stderr
