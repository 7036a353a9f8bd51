"""The chart's ValidatingAdmissionPolicy: the operator works under it and writes nothing else."""

import ssl

import httpx
import pytest
import yaml

from specdecode_api import names
from specdecode_operator.objects.kinds import (
    CHILDREN,
    CONFIG_MAP,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    RESOURCE,
    ROLE,
    ROLE_BINDING,
    ROUTER_CHILDREN,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    ResourceKind,
)

pytestmark = pytest.mark.apiserver

GROUP = "admissionregistration.k8s.io"
POLICY = ResourceKind(GROUP, "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", ())
BINDING = ResourceKind(
    GROUP, "v1", "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", ()
)
MANAGED = {names.LABEL_MANAGED_BY: names.FIELD_MANAGER}
UNLABELLED = {"metadata": {"labels": {names.LABEL_MANAGED_BY: None}}}
CLOUD_ROLE = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/admin"}


@pytest.fixture(scope="module")
def credentials(api, kubeconfig, grant, template):
    """A kubeconfig of the account that the chart's policy confines; `kubeconfig` has the CRD."""
    flags = "fullnameOverride=confined,crds.install=false,rbac.aggregate=false"
    manifests = template("--set", f"{flags},admissionPolicy.enabled=true")
    for kind in (POLICY, BINDING):
        (manifest,) = (each for each in manifests if each["kind"] == kind.kind)
        api.create(kind, manifest)
    return grant(manifests)


@pytest.fixture(scope="module")
def account(credentials, plane, until):
    """Requests with the operator's permissions, once the policy is in force."""
    user = yaml.safe_load(credentials.read_text())["users"][0]["user"]
    context = ssl.create_default_context(cafile=str(plane.authority_file))
    headers = {"Authorization": f"Bearer {user['token']}"}
    with httpx.Client(base_url=plane.url, headers=headers, verify=context, timeout=30) as client:
        probe = an_object(CONFIG_MAP, "probe", "default")
        until(lambda: create(client, CONFIG_MAP, probe).status_code == 403)
        yield client


def an_object(kind, name, namespace, **metadata):
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": name, "namespace": namespace, **metadata},
    }


def create(client, kind, manifest):
    return client.post(kind.path(manifest["metadata"]["namespace"]), json=manifest)


def merge(client, kind, namespace, name, patch):
    headers = {"Content-Type": "application/merge-patch+json"}
    return client.patch(kind.path(namespace, name), json=patch, headers=headers)


def assert_refused(answer, *words):
    assert answer.status_code == 403, answer.text
    message = answer.json()["message"]
    assert "ValidatingAdmissionPolicy 'confined'" in message
    for word in words:
        assert word in message, message


@pytest.fixture
def operator(credentials, account, tmp_path, make_operator, until, namespace):
    """An operator that the policy confines."""
    operator = make_operator(credentials, tmp_path / "log", ("--namespace", namespace), "confined")
    operator.start(until)
    yield operator
    assert operator.stop() == 0, operator.log.read_text()


def test_the_confined_operator_creates_restores_and_deletes_its_objects(
    operator, api, namespace, chat, until
):
    chat(replicas=2)
    for kind in CHILDREN:
        until(lambda kind=kind: api.items(kind, namespace, f"{names.LABEL_DEPLOYMENT}=chat"))
    api.delete(SERVICE, namespace, "chat")
    until(lambda: api.get(SERVICE, namespace, "chat"))
    api.merge(DEPLOYMENT, namespace, "chat", UNLABELLED)
    until(
        lambda: (
            MANAGED.items() <= api.get(DEPLOYMENT, namespace, "chat")["metadata"]["labels"].items()
        )
    )
    api.merge(RESOURCE, namespace, "chat", {"spec": {"replicas": 1}})
    until(lambda: api.get(DISRUPTION_BUDGET, namespace, "chat") is None)
    assert operator.metric("api_error_total", code="403") == 0


def test_the_confined_operator_creates_restores_and_deletes_what_routers_need(
    operator, api, namespace, chat, until
):
    chat(router={})
    for kind in ROUTER_CHILDREN:
        until(lambda kind=kind: api.get(kind, namespace, "chat-router"))
    until(lambda: api.get(DEPLOYMENT, namespace, "chat-router"))
    until(lambda: api.get(SECRET, namespace, names.ROUTER_SECRET))
    api.delete(ROLE, namespace, "chat-router")
    until(lambda: api.get(ROLE, namespace, "chat-router"))
    api.merge(RESOURCE, namespace, "chat", {"spec": {"router": None}})
    for kind in (*ROUTER_CHILDREN, DEPLOYMENT, SERVICE_ACCOUNT, DISRUPTION_BUDGET):
        until(lambda kind=kind: api.get(kind, namespace, "chat-router") is None)
    until(lambda: api.get(SERVICE, namespace, "chat-engines") is None)
    assert operator.metric("api_error_total", code="403") == 0


@pytest.mark.parametrize(
    "rule",
    [
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["delete"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]},
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
    ],
    ids=["verb", "pods", "secrets", "everything"],
)
def test_a_role_grants_nothing_but_to_follow_endpoints(rule, account, namespace):
    role = an_object(ROLE, "chat-router", namespace, labels=MANAGED) | {"rules": [rule]}
    answer = create(account, ROLE, role)
    assert answer.status_code == 403, answer.text
    allowed = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"]}
    role["rules"] = [allowed | {"verbs": ["list", "watch"]}]
    assert create(account, ROLE, role).status_code == 201


def test_a_binding_is_for_the_account_of_its_name_only(account, namespace):
    def binding(kind, role, subject):
        reference = {"apiGroup": ROLE.group, "kind": kind, "name": role}
        subjects = [{"kind": "ServiceAccount", "name": subject, "namespace": namespace}]
        plain = an_object(ROLE_BINDING, "chat-router", namespace, labels=MANAGED)
        return plain | {"roleRef": reference, "subjects": subjects}

    rule = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list"]}
    role = an_object(ROLE, "chat-router", namespace, labels=MANAGED) | {"rules": [rule]}
    assert create(account, ROLE, role).status_code == 201
    other = create(account, ROLE_BINDING, binding("Role", "chat-router", "default"))
    assert_refused(other, "only to the account of its name")
    cluster = create(account, ROLE_BINDING, binding("ClusterRole", "view", "view"))
    assert cluster.status_code == 403, cluster.text
    right = create(account, ROLE_BINDING, binding("Role", "chat-router", "chat-router"))
    assert right.status_code == 201, right.text


def test_the_operator_reads_and_writes_no_other_secret(account, api, namespace):
    other = an_object(SECRET, "others", namespace, labels=MANAGED)
    api.create(SECRET, other)
    assert account.get(SECRET.path(namespace, "others")).status_code == 403
    assert account.get(SECRET.path(namespace)).status_code == 403
    assert merge(account, SECRET, namespace, "others", {"data": {}}).status_code == 403


def test_the_operator_keeps_the_annotations_that_users_write_on_a_service_account(
    operator, api, namespace, chat, until
):
    chat()
    until(lambda: api.get(SERVICE_ACCOUNT, namespace, "chat"))
    own = {"automountServiceAccountToken": True, "metadata": {"annotations": CLOUD_ROLE}}
    api.merge(SERVICE_ACCOUNT, namespace, "chat", own)
    until(
        lambda: api.get(SERVICE_ACCOUNT, namespace, "chat")["automountServiceAccountToken"] is False
    )
    annotations = api.get(SERVICE_ACCOUNT, namespace, "chat")["metadata"]["annotations"]
    assert CLOUD_ROLE.items() <= annotations.items()


def test_an_object_without_the_label_cannot_be_created(account, namespace):
    answer = create(account, CONFIG_MAP, an_object(CONFIG_MAP, "mine", namespace))
    assert_refused(answer, "ConfigMap", "needs the label", names.LABEL_MANAGED_BY)
    labelled = an_object(CONFIG_MAP, "mine", namespace, labels=MANAGED)
    assert create(account, CONFIG_MAP, labelled).status_code == 201


def test_objects_of_others_cannot_be_changed_taken_over_or_deleted(account, api, namespace):
    api.create(CONFIG_MAP, an_object(CONFIG_MAP, "theirs", namespace))
    place = (CONFIG_MAP, namespace, "theirs")
    assert_refused(merge(account, *place, {"data": {"a": "b"}}), "ConfigMap theirs", "has no label")
    assert_refused(merge(account, *place, {"metadata": {"labels": MANAGED}}), "ConfigMap theirs")
    assert_refused(account.delete(CONFIG_MAP.path(namespace, "theirs")), "ConfigMap theirs")
    found = api.get(CONFIG_MAP, namespace, "theirs")
    assert "data" not in found
    assert "labels" not in found["metadata"]


def test_the_label_cannot_be_removed(account, namespace):
    labelled = an_object(CONFIG_MAP, "chat", namespace, labels=MANAGED)
    assert create(account, CONFIG_MAP, labelled).status_code == 201
    assert_refused(merge(account, CONFIG_MAP, namespace, "chat", UNLABELLED), "needs the label")


def test_a_service_account_gets_no_annotation_of_a_cloud_provider(account, namespace):
    annotations = {names.ANNOTATION_DESIRED_HASH: "1"}
    plain = an_object(SERVICE_ACCOUNT, "chat", namespace, labels=MANAGED, annotations=annotations)
    assert create(account, SERVICE_ACCOUNT, plain).status_code == 201
    patch = {"metadata": {"annotations": CLOUD_ROLE}}
    assert_refused(merge(account, SERVICE_ACCOUNT, namespace, "chat", patch), "ServiceAccount chat")
    new = an_object(
        SERVICE_ACCOUNT, "other", namespace, labels=MANAGED, annotations=CLOUD_ROLE | annotations
    )
    assert_refused(create(account, SERVICE_ACCOUNT, new), "annotations of ServiceAccounts")


def test_a_deployment_runs_under_the_account_of_its_resource_only(
    account, namespace, build, example
):
    manifest = build(example())["Deployment"]
    metadata = manifest["metadata"] | {"namespace": namespace, "ownerReferences": []}
    manifest["metadata"] = metadata | {"name": "chat"}
    manifest["spec"]["template"]["spec"]["serviceAccountName"] = "default"
    assert_refused(create(account, DEPLOYMENT, manifest), 'ServiceAccount "default"')
    manifest["spec"]["template"]["spec"]["serviceAccountName"] = "chat"
    assert create(account, DEPLOYMENT, manifest).status_code == 201


def test_a_custom_resource_is_created_in_a_dry_run_only(account, api, namespace, example):
    """Candidates of trials are validated so; the name of the test's resource is free."""
    manifest = example()
    manifest["metadata"] = {"name": "candidate", "namespace": namespace}
    tried = account.post(RESOURCE.path(namespace), params={"dryRun": "All"}, json=manifest)
    assert tried.status_code == 201, tried.text
    assert_refused(create(account, RESOURCE, manifest), "in a dry run only")
    assert api.get(RESOURCE, namespace, "candidate") is None


def test_other_accounts_are_not_confined(api, account, namespace):
    created = api.create(CONFIG_MAP, an_object(CONFIG_MAP, "free", namespace))
    assert created["metadata"]["name"] == "free"
    api.delete(CONFIG_MAP, namespace, "free")
    assert api.get(CONFIG_MAP, namespace, "free") is None
