"""How an operator starts, its errors when it cannot, and how it runs with fewer permissions."""

import httpx
import pytest

from specdecode_api import names
from specdecode_operator.commands.check import check
from specdecode_operator.objects import kinds
from specdecode_operator.objects.kinds import DEPLOYMENT, RESOURCE, SERVICE
from specdecode_operator.process.errors import StartError
from specdecode_operator.process.run import run
from specdecode_operator.settings import Settings

pytestmark = pytest.mark.apiserver


async def test_missing_rights_end_the_start_with_a_remedy(grant, template, kubeconfig):
    flags = "rbac.create=false,rbac.aggregate=false,crds.install=false,fullnameOverride=nothing"
    nothing = grant(template("--set", flags))
    settings = Settings(
        engine_image="-", kubeconfig=str(nothing), metrics_port=0, start_timeout_seconds=0
    )
    with pytest.raises(StartError) as caught:
        await run(settings)
    assert "this account may not create specdecodedeployments.specdecode.io, " in str(caught.value)
    assert "; nor list specdecodedeployments.specdecode.io, " in str(caught.value)
    assert "grant the operator's service account this verb" in str(caught.value)


def test_an_account_that_may_not_review_its_permissions_starts_after_the_grace_period(
    api, kubeconfig, make_operator, tmp_path, namespace, until
):
    """Every account may, unless an administrator forbids it, or the API server has just started."""
    kind = kinds.ResourceKind(
        "rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", ()
    )
    binding = api.get(kind, None, "system:basic-user")
    log = tmp_path / "log"
    operator = make_operator(kubeconfig, log, ("--namespace", namespace), f"unreviewed-{namespace}")
    api.delete(kind, None, "system:basic-user")
    try:
        operator.start(lambda _: None)
        until(lambda: "cannot start yet" in log.read_text())
        until(operator._is_up)
        assert "starting without a check of permissions" in log.read_text()
    finally:
        api.create(kind, {**binding, "metadata": {"name": "system:basic-user"}})
        operator.stop()


def test_a_role_per_namespace_is_enough(
    api, grant, template, kubeconfig, make_operator, tmp_path, namespace, chat, example, until
):
    flags = f"fullnameOverride=roles,crds.install=false,watchNamespaces={{{namespace}}}"
    manifests = template("--set", flags, "--set", "rbac.aggregate=false")
    assert not any(each["kind"].startswith("ClusterRole") for each in manifests)
    arguments = ("--namespace", namespace)
    log = tmp_path / "log"
    operator = make_operator(grant(manifests), log, arguments, "roles")
    operator.start(until)
    try:
        chat(replicas=2)
        until(lambda: api.get(DEPLOYMENT, namespace, "chat"))
        api.delete(SERVICE, namespace, "chat")
        until(lambda: api.get(SERVICE, namespace, "chat"))
        api.client.post("/api/v1/namespaces", json={"metadata": {"name": f"{namespace}-other"}})
        foreign = example()
        foreign["metadata"] = {"name": "chat", "namespace": f"{namespace}-other"}
        api.create(kinds.RESOURCE, foreign)
        until(lambda: api.get(kinds.RESOURCE, namespace, "chat")["status"]["address"])
        assert httpx.get(f"http://127.0.0.1:{operator.ports[0]}/healthz").json() == {"health": "ok"}
        assert operator.metric("resources") == 1
        assert "status" not in api.get(kinds.RESOURCE, f"{namespace}-other", "chat")
        assert not api.items(DEPLOYMENT, f"{namespace}-other")
    finally:
        code = operator.stop()
    assert code == 0
    assert "is forbidden" not in log.read_text()
    assert "Traceback" not in log.read_text()


async def test_the_installation_check_finds_what_is_there(plane, kubeconfig):
    findings = await check(str(plane.kubeconfig), "default", None)
    assert [finding.problem for finding in findings] == [None, None, None, None]


async def test_the_installation_check_reports_what_is_not(grant, template, kubeconfig):
    flags = "crds.install=false,rbac.aggregate=false,fullnameOverride=without-create"
    manifests = template("--set", flags)
    for rule in (rule for each in manifests for rule in each.get("rules", ())):
        if rule["resources"] == [names.PLURAL]:
            rule["verbs"] = [verb for verb in rule["verbs"] if verb != "create"]
    findings = await check(str(grant(manifests)), "default", "http://127.0.0.1:9/healthz")
    definition, schema, good, bad, health = findings
    assert definition.is_good
    assert schema.is_good
    assert "cannot create resource" in str(good.problem)
    assert "cannot create resource" in str(bad.problem)
    assert "Cannot connect to host 127.0.0.1:9" in str(health.problem)
    assert str(health).startswith("FAIL the operator responds")


def test_operators_of_different_classes_share_a_cluster(
    api, grant, template, kubeconfig, make_operator, tmp_path, namespace, chat, until
):
    """A resource belongs to the operator of its label; it may change hands at any time."""
    manifests = template("--set", "crds.install=false,rbac.aggregate=false,fullnameOverride=blue")
    arguments = ("--namespace", namespace, "--operator-class", "blue")
    blue = make_operator(grant(manifests), tmp_path / "log", arguments, "blue")

    def label(name, value):
        labels = {names.LABEL_OPERATOR_CLASS: value}
        api.merge(RESOURCE, namespace, name, {"metadata": {"labels": labels}})

    def has_deployments(*wanted):
        found = {each["metadata"]["name"] for each in api.items(DEPLOYMENT, namespace)}
        return found == set(wanted)

    chat("plain")
    chat("ours")
    label("ours", "blue")
    blue.start(until)
    try:
        until(lambda: has_deployments("ours"))
        assert blue.metric("resources") == 1
        label("plain", "blue")
        until(lambda: has_deployments("ours", "plain"))
        label("plain", None)
        until(lambda: blue.metric("resources") == 1)
        api.merge(RESOURCE, namespace, "plain", {"spec": {"replicas": 3}})
        api.merge(RESOURCE, namespace, "ours", {"spec": {"replicas": 3}})
        until(lambda: api.get(DEPLOYMENT, namespace, "ours")["spec"]["replicas"] == 3)
        assert api.get(DEPLOYMENT, namespace, "plain")["spec"]["replicas"] == 1
    finally:
        blue.stop()


def test_a_class_that_is_no_label_is_refused():
    with pytest.raises(ValueError, match="the operator class is 'a/b'; use the value of a label"):
        Settings(engine_image="-", operator_class="a/b")
