"""One operator process against a real API server, with the rights that the chart grants."""

import pytest

from specdecode_api import names
from specdecode_operator.objects import kinds
from specdecode_operator.objects.kinds import (
    CHILDREN,
    CONFIG_MAP,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    ENDPOINT_SLICE,
    POD,
    RESOURCE,
    SERVICE,
    SERVICE_ACCOUNT,
    TRIAL,
)

from_operator = kinds.OWNED_SELECTOR

pytestmark = pytest.mark.apiserver


@pytest.fixture(scope="module")
def operator_log(tmp_path_factory):
    return tmp_path_factory.mktemp("operator") / "log"


@pytest.fixture(scope="module")
def operator(kubeconfig, operator_log, until, make_operator):
    started = make_operator(kubeconfig, operator_log)
    started.start(until)
    yield started
    assert started.stop() == 0
    log = operator_log.read_text()
    assert "Traceback" not in log, log
    assert "is forbidden" not in log, log


@pytest.fixture
def settled(api, namespace, until, condition, operator):
    """Wait until a resource is reconciled and its status is written."""

    def wait(name="chat"):
        until(lambda: condition("ConfigResolved", name)[0] == "True")
        return api.get(RESOURCE, namespace, name)

    return wait


@pytest.fixture
def again(api, namespace, operator, until):
    """Have a resource reconciled again without changing its spec."""

    def touch(name="chat"):
        before = operator.metric("reconcile_total")
        api.merge(
            RESOURCE, namespace, name, {"metadata": {"annotations": {"touched": str(before)}}}
        )
        until(lambda: operator.metric("reconcile_total") > before)

    return touch


def test_children_appear_and_the_resource_reports_them(
    chat, settled, api, namespace, until, events
):
    chat(replicas=2)
    resource = settled()
    deployment = until(lambda: api.get(DEPLOYMENT, namespace, "chat"))
    (config_map,) = api.items(CONFIG_MAP, namespace, from_operator)
    assert config_map["metadata"]["name"] == f"chat-{resource['status']['configHash']}"
    assert names.BOOT_FILE_NAME in config_map["data"]
    assert api.get(SERVICE, namespace, "chat")["spec"]["ports"][0]["port"] == 80
    assert api.get(SERVICE_ACCOUNT, namespace, "chat")
    assert api.get(DISRUPTION_BUDGET, namespace, "chat")["spec"]["maxUnavailable"] == 1
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "specdecode-engine:test"
    for kind in CHILDREN:
        (child,) = api.items(kind, namespace, from_operator)
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (resource["metadata"]["uid"], True)
    assert resource["status"]["address"]["url"] == f"http://chat.{namespace}.svc"
    until(lambda: events() == ["Starting"])


def test_the_resource_itself_is_written_to_by_nobody(chat, settled):
    chat()
    metadata = settled()["metadata"]
    assert "finalizers" not in metadata
    assert "annotations" not in metadata
    writers = {(each["manager"], each.get("subresource")) for each in metadata["managedFields"]}
    ours = {writer for writer in writers if writer[0].startswith("specdecode")}
    assert ours == {(names.STATUS_FIELD_MANAGER, "status")}


def test_a_second_reconcile_writes_nothing(chat, settled, again, versions, operator):
    chat()
    settled()
    again()
    before = versions()
    writes = operator.metric("apply_total"), operator.metric("status_write_total")
    again()
    again()
    after = versions()
    assert {k: v for k, v in after.items() if k[0] != names.KIND} == {
        k: v for k, v in before.items() if k[0] != names.KIND
    }
    assert (operator.metric("apply_total"), operator.metric("status_write_total")) == writes


@pytest.mark.parametrize(
    ("kind", "edit"),
    [
        (DEPLOYMENT, {"spec": {"replicas": 7}}),
        (DEPLOYMENT, {"spec": {"strategy": {"rollingUpdate": {"maxSurge": 3}}}}),
        (DEPLOYMENT, {"metadata": {"labels": {names.LABEL_MANAGED_BY: None}}}),
        (DEPLOYMENT, {"metadata": {"annotations": {names.ANNOTATION_DESIRED_HASH: None}}}),
        (SERVICE, {"spec": {"selector": {names.LABEL_DEPLOYMENT: "other"}}}),
        (SERVICE_ACCOUNT, {"automountServiceAccountToken": True}),
        (CONFIG_MAP, {"data": {names.BOOT_FILE_NAME: "{}"}}),
        (DISRUPTION_BUDGET, {"spec": {"maxUnavailable": 2}}),
    ],
    ids=lambda each: each.kind if isinstance(each, kinds.ResourceKind) else "-".join(each),
)
def test_an_edited_child_is_put_right(kind, edit, chat, settled, api, namespace, until, operator):
    chat(replicas=2)
    settled()
    (child,) = api.items(kind, namespace, from_operator)
    name = child["metadata"]["name"]
    before = _essence(api.get(kind, namespace, name))
    drifts = operator.metric("drift_corrected_total", kind=kind.kind)
    edited = api.merge(kind, namespace, name, edit)
    assert _essence(edited) != before
    until(lambda: _essence(api.get(kind, namespace, name)) == before)
    until(lambda: operator.metric("drift_corrected_total", kind=kind.kind) > drifts)


@pytest.mark.parametrize("kind", CHILDREN, ids=lambda kind: kind.kind)
def test_a_deleted_child_is_made_again(kind, chat, settled, api, namespace, until, operator):
    chat(replicas=2)
    settled()
    (child,) = api.items(kind, namespace, from_operator)
    name, uid = child["metadata"]["name"], child["metadata"]["uid"]
    drifts = operator.metric("drift_corrected_total", kind=kind.kind)
    api.delete(kind, namespace, name)
    successor = until(lambda: api.get(kind, namespace, name))
    assert successor["metadata"]["uid"] != uid
    assert _essence(successor) == _essence(child | {"kind": kind.kind})
    until(lambda: operator.metric("drift_corrected_total", kind=kind.kind) > drifts)


def test_an_edit_of_the_spec_reaches_the_children(chat, settled, api, namespace, until):
    chat()
    first = settled()["status"]["configHash"]
    api.merge(RESOURCE, namespace, "chat", {"spec": {"pageSize": 32, "replicas": 3}})
    second = settled()["status"]["configHash"]
    assert second != first
    deployment = api.get(DEPLOYMENT, namespace, "chat")["spec"]
    assert deployment["replicas"] == 3
    stamped = deployment["template"]["metadata"]["annotations"][names.ANNOTATION_CONFIG_HASH]
    assert stamped == second
    maps = {each["metadata"]["name"] for each in api.items(CONFIG_MAP, namespace, from_operator)}
    assert maps == {f"chat-{first}", f"chat-{second}"}, "old pods may still need the old boot file"
    _complete(api, namespace)
    until(lambda: len(api.items(CONFIG_MAP, namespace, from_operator)) == 1)
    assert api.get(CONFIG_MAP, namespace, f"chat-{second}")


def test_replicas_alone_replace_no_pods(chat, settled, api, namespace):
    chat()
    first = settled()["status"]["configHash"]
    api.merge(RESOURCE, namespace, "chat", {"spec": {"replicas": 2}})
    assert settled()["status"]["configHash"] == first
    assert api.get(DEPLOYMENT, namespace, "chat")["spec"]["replicas"] == 2


def test_a_trial_that_apply_created_is_refused_long_before_the_next_resync(
    chat, settled, api, namespace, until
):
    """The operator adopts it, and no further event queues the resource."""
    chat()
    settled()
    trial = {
        "apiVersion": TRIAL.api_version,
        "kind": TRIAL.kind,
        "metadata": {"name": "unknown-field", "namespace": namespace},
        "spec": {"deployment": "chat", "candidate": {"speculation": {"topK": 2}}},
    }
    api.create(TRIAL, trial)
    ended = until(lambda: api.get(TRIAL, namespace, "unknown-field")["status"])
    assert (ended["verdict"], ended["reason"]) == ("Aborted", "InvalidCandidate")


def test_the_budget_goes_with_the_second_replica(chat, settled, api, namespace, until):
    chat(replicas=2)
    settled()
    assert api.get(DISRUPTION_BUDGET, namespace, "chat")
    api.merge(RESOURCE, namespace, "chat", {"spec": {"replicas": 1}})
    until(lambda: api.get(DISRUPTION_BUDGET, namespace, "chat") is None)


def test_what_others_add_survives(chat, settled, api, namespace, until, again):
    chat()
    settled()
    for kind in (DEPLOYMENT, SERVICE):
        note = {"annotations": {"example.com/note": "mine"}, "labels": {"team": "a"}}
        api.merge(kind, namespace, "chat", {"metadata": note})
    api.merge(RESOURCE, namespace, "chat", {"spec": {"pageSize": 64}})
    settled()
    again()
    for kind in (DEPLOYMENT, SERVICE):
        metadata = api.get(kind, namespace, "chat")["metadata"]
        assert metadata["annotations"]["example.com/note"] == "mine"
        assert metadata["labels"]["team"] == "a"


def test_a_stranger_of_the_same_name_is_left_alone(
    chat, api, namespace, until, condition, again, settled
):
    ports = {"ports": [{"port": 443}]}
    manifest = {"metadata": {"name": "chat", "namespace": namespace}, "spec": ports}
    stranger = api.create(SERVICE, manifest)
    chat()
    until(lambda: condition("Ready")[1] == "NameConflict")
    status, _, message = condition("Ready")
    assert status == "False"
    assert "Service chat exists and is not controlled by this resource" in message
    assert condition("Degraded")[:2] == ("True", "NameConflict")
    assert api.get(SERVICE, namespace, "chat") == stranger
    assert api.get(DEPLOYMENT, namespace, "chat") is None, "an engine without its Service"
    api.delete(SERVICE, namespace, "chat")
    again()
    until(lambda: api.get(DEPLOYMENT, namespace, "chat"))
    assert condition("Ready")[1] == "Starting"


def test_a_spec_that_cannot_be_carried_out_changes_nothing(
    chat, settled, api, namespace, until, condition, events, versions
):
    chat()
    settled()
    before = versions()
    api.merge(
        RESOURCE,
        namespace,
        "chat",
        {"spec": {"template": {"spec": {"restartPolicy": "Never"}}}},
    )
    until(lambda: condition("ConfigResolved")[:2] == ("False", "Invalid"))
    assert "cannot be patched; it is Always" in condition("ConfigResolved")[2]
    assert condition("Ready")[:2] == ("False", "Invalid")
    after = versions()
    assert {k: v for k, v in after.items() if k[0] != names.KIND} == {
        k: v for k, v in before.items() if k[0] != names.KIND
    }
    until(lambda: events() == ["Invalid", "Starting"])
    api.merge(RESOURCE, namespace, "chat", {"spec": {"template": None}})
    settled()
    until(lambda: events() == ["Invalid", "Resolved", "Starting", "Starting"])


def test_a_child_that_the_api_server_refuses_is_reported_and_hurts_nobody_else(
    chat, api, namespace, until, condition, settled
):
    chat("poison", resources={"limits": {"not-a-resource": "1"}})
    until(lambda: condition("Ready", "poison")[1] == "ApplyFailed")
    assert "must be a standard resource" in condition("Ready", "poison")[2]
    assert condition("Degraded", "poison")[:2] == ("True", "ApplyFailed")
    chat("healthy")
    settled("healthy")
    assert api.get(DEPLOYMENT, namespace, "healthy")
    api.delete(RESOURCE, namespace, "poison")


def test_deleting_the_resource_needs_nothing_and_takes_the_children(
    chat, settled, api, namespace, until
):
    chat(replicas=2)
    settled()
    api.delete(RESOURCE, namespace, "chat")
    until(lambda: not [c for kind in CHILDREN for c in api.items(kind, namespace, from_operator)])


def test_a_resource_made_again_under_its_name_gets_children_of_its_own(
    chat, settled, api, namespace, until
):
    chat()
    settled()
    api.delete(RESOURCE, namespace, "chat")
    uid = chat(pageSize=32)["metadata"]["uid"]

    def are_all_its_own():
        children = [c for kind in CHILDREN for c in api.items(kind, namespace, from_operator)]
        owners = {child["metadata"]["ownerReferences"][0]["uid"] for child in children}
        return owners == {uid} and len(children) == 4

    until(are_all_its_own)
    settled()


def test_what_happens_to_the_pods_is_reported(
    chat, settled, api, namespace, until, condition, events
):
    chat()
    config_hash = settled()["status"]["configHash"]
    template = api.get(DEPLOYMENT, namespace, "chat")["spec"]["template"]
    metadata = {**template["metadata"], "name": "chat-1", "namespace": namespace}
    api.create(POD, {"metadata": metadata, "spec": template["spec"]})
    assert metadata["annotations"][names.ANNOTATION_CONFIG_HASH] == config_hash

    state = {"waiting": {"reason": "ErrImagePull", "message": "not found"}}
    _set_container(api, namespace, state=state)
    until(lambda: condition("Ready")[1] == "ImagePullFailed")
    assert "cannot pull specdecode-engine:test: not found" in condition("Ready")[2]

    crash = {"terminated": {"exitCode": 1, "message": "no checkpoint in /models/target/target"}}
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    _set_container(api, namespace, state=waiting, lastState=crash, restartCount=3)
    until(lambda: condition("Ready")[1] == "EngineCrashing")
    assert "no checkpoint in /models/target/target" in condition("Ready")[2]
    assert condition("Degraded")[:2] == ("True", "EngineCrashing")

    _set_container(api, namespace, state={"running": {}}, ready=True)
    _complete(api, namespace)
    until(lambda: condition("Ready")[:2] == ("True", "Serving"))
    assert condition("Available")[0] == "True"
    until(lambda: _has(api, namespace, "ModelReady"))  # reported by the pod, possibly later
    assert condition("ModelReady")[0] == "True"
    assert condition("Progressing")[:2] == ("True", "NewReplicaSetAvailable")
    assert condition("Degraded")[0] == "False"
    until(lambda: events() == ["EngineCrashing", "ImagePullFailed", "Serving", "Starting"])
    until(lambda: api.get(RESOURCE, namespace, "chat")["status"]["readyReplicas"] == 1)

    api.create(ENDPOINT_SLICE, _slice(api, namespace))
    until(lambda: api.get(RESOURCE, namespace, "chat")["status"]["routableReplicas"] == 1)
    assert len(api.items(ENDPOINT_SLICE, namespace)) == 1  # others' objects are not pruned


def _slice(api, namespace):
    """What the controller of endpoint slices makes for the Service: it copies the labels."""
    service = api.get(SERVICE, namespace, "chat")["metadata"]
    uid = api.get(POD, namespace, "chat-1")["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Service", "name": "chat", "uid": service["uid"]}
    return {
        "metadata": {
            "name": "chat-x",
            "namespace": namespace,
            "labels": {**service["labels"], "kubernetes.io/service-name": "chat"},
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        },
        "addressType": "IPv4",
        "endpoints": [
            {
                "addresses": ["10.0.0.1"],
                "conditions": {"ready": True},
                "targetRef": {"kind": "Pod", "name": "chat-1", "namespace": namespace, "uid": uid},
            }
        ],
        "ports": [],
    }


def _has(api, namespace, kind):
    conditions = api.get(RESOURCE, namespace, "chat")["status"]["conditions"]
    return any(each["type"] == kind for each in conditions)


def test_a_burst_of_edits_ends_in_the_last_one_with_few_writes(
    chat, settled, api, namespace, until, operator
):
    chat()
    settled()
    before = operator.metric("apply_total", kind="Deployment")
    for replicas in range(2, 32):
        api.merge(RESOURCE, namespace, "chat", {"spec": {"replicas": replicas}})
    settled()
    until(lambda: api.get(DEPLOYMENT, namespace, "chat")["spec"]["replicas"] == 31)
    assert operator.metric("apply_total", kind="Deployment") - before <= 30


def test_a_killed_operator_goes_on_without_a_single_write(
    chat, settled, again, versions, events, until, operator
):
    chat(replicas=2)
    settled()
    again()
    before, shown = versions(), events()
    operator.kill()
    operator.start(until)
    again()
    after = versions()
    assert {k: v for k, v in after.items() if k[0] != names.KIND} == {
        k: v for k, v in before.items() if k[0] != names.KIND
    }
    assert operator.metric("apply_total") == operator.metric("status_write_total") == 0
    assert events() == shown


def test_what_happened_while_no_operator_ran_is_made_up_for(
    chat, settled, api, namespace, until, operator
):
    chat("edited")
    chat("deleted")
    settled("edited")
    settled("deleted")
    operator.kill()
    api.delete(RESOURCE, namespace, "deleted")
    api.delete(SERVICE, namespace, "edited")
    api.merge(RESOURCE, namespace, "edited", {"spec": {"replicas": 3}})
    operator.start(until)
    settled("edited")
    assert api.get(SERVICE, namespace, "edited")
    assert api.get(DEPLOYMENT, namespace, "edited")["spec"]["replicas"] == 3
    until(lambda: api.get(DEPLOYMENT, namespace, "deleted") is None)


def _essence(manifest):
    """What the operator decides about a child."""
    metadata = manifest["metadata"]
    rest = {k: v for k, v in manifest.items() if k not in ("metadata", "status", "apiVersion")}
    rest["spec"] = {k: v for k, v in rest.get("spec", {}).items() if not k.startswith("clusterIP")}
    return metadata.get("labels"), metadata.get("annotations"), rest


def _complete(api, namespace):
    """Play the Deployment controller: all replicas run the newest template."""
    deployment = api.get(DEPLOYMENT, namespace, "chat")
    count = deployment["spec"]["replicas"]
    fields = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
    generation = deployment["metadata"]["generation"]
    status = {"observedGeneration": generation, **dict.fromkeys(fields, count)}
    api.merge(DEPLOYMENT, namespace, "chat", {"status": status}, "/status")


def _set_container(api, namespace, **state):
    """Play the kubelet: the engine's container is like this."""
    container = {
        "name": names.ENGINE_CONTAINER,
        "image": "specdecode-engine:test",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        **state,
    }
    ready = {"type": "Ready", "status": "True" if container["ready"] else "False"}
    status = {"phase": "Running", "containerStatuses": [container], "conditions": [ready]}
    api.merge(POD, namespace, "chat-1", {"status": status}, "/status")
