"""Models that are fetched or lie in images, against a real API server."""

import json
import ssl

import httpx
import pytest

from specdecode_api import names
from specdecode_api.report import (
    ModelReport,
    ModelRole,
    ModelState,
    Progress,
    TerminationMessage,
    TerminationReason,
)
from specdecode_engine.fetch.progress import answering
from specdecode_operator.cluster.object_writer import image_volumes
from specdecode_operator.objects.kinds import CONFIG_MAP, DEPLOYMENT, OWNED_SELECTOR, POD, RESOURCE
from specdecode_operator.objects.observed import Key
from specdecode_operator.owned.labels import pod_labels
from specdecode_operator.reconcile import LOOK_AGAIN_S, LOOK_AT_PROGRESS_S

pytestmark = pytest.mark.apiserver

TARGET = "hf://org/target@main"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
IMAGE = "oci://registry.example/team/llama:v1"
HUB = {"model": {"uri": TARGET}}


def report(state, done):
    return ModelReport(
        role=ModelRole.TARGET,
        uri=TARGET,
        state=state,
        revision=COMMIT,
        bytes_done=done,
        bytes_total=100,
    )


def words(reason, message, *models):
    return TerminationMessage(reason=reason, message=message, models=models).encode().decode()


@pytest.fixture
def kubelet(api, namespace):
    """Have a pod of the resource, with its download in a state."""

    def report_of(state, last=None, ready=False):
        if api.get(POD, namespace, "chat-1") is None:
            template = api.get(DEPLOYMENT, namespace, "chat")["spec"]["template"]
            metadata = {**template["metadata"], "name": "chat-1", "namespace": namespace}
            assert pod_labels("chat").items() <= metadata["labels"].items()
            api.create(POD, {"metadata": metadata, "spec": template["spec"]})
        fetch = {
            "name": "fetch",
            "image": "e",
            "imageID": "e",
            "ready": ready,
            "restartCount": 0,
            "state": state,
            "lastState": last or {},
        }
        status = {"phase": "Pending", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}
        status["initContainerStatuses"] = [fetch]
        api.merge(POD, namespace, "chat-1", {"status": status}, "/status")

    return report_of


@pytest.fixture
def reported(api, namespace):
    """Read the model from the resource's status, and status and reason of `ModelReady`."""

    def read():
        status = api.get(RESOURCE, namespace, "chat")["status"]
        by_type = {each["type"]: each for each in status["conditions"]}
        condition = by_type.get("ModelReady", {})
        return status["models"][0], (condition.get("status"), condition.get("reason"))

    return read


async def test_a_download_from_its_first_byte_to_the_pin(
    parts, chat, kubelet, reported, namespace, api
):
    chat(**HUB)
    key = Key(namespace, "chat")
    half = Progress(models=(report(ModelState.DOWNLOADING, 50),))
    with answering(0, lambda: half) as port:
        async with parts(engine_port=port) as wired:
            await wired.resync.once()
            await wired.reconcile(key)
            assert reported() == (
                {"role": "target", "uri": TARGET, "state": "Pending"}
                | {"message": "no pod has started the download"},
                (None, None),
            )
            kubelet({"running": {}})
            await wired.resync.once()
            assert await wired.reconcile(key) == LOOK_AT_PROGRESS_S
            model, condition = reported()
            assert (model["bytesDone"], model["bytesTotal"]) == (50, 100)
            assert condition == ("False", "Downloading")

            done = words(TerminationReason.FETCHED, "done", report(ModelState.READY, 100))
            kubelet({"terminated": {"exitCode": 0, "message": done}}, ready=True)
            await wired.resync.once()
            assert await wired.reconcile(key) is None
            model, condition = reported()
            assert (model["state"], model["revision"]) == ("Ready", COMMIT)
            assert condition == ("True", "Downloaded")
    (config_map,) = api.items(CONFIG_MAP, namespace, OWNED_SELECTOR)
    assert json.loads(config_map["data"][names.PINS_FILE_NAME]) == {TARGET: COMMIT}


async def test_a_fault_is_reported_and_a_second_look_writes_nothing(
    parts, chat, kubelet, reported, namespace
):
    chat(**HUB)
    key = Key(namespace, "chat")
    async with parts() as wired:
        await wired.resync.once()
        await wired.reconcile(key)
        crash = {
            "terminated": {
                "exitCode": 1,
                "message": words(TerminationReason.OUT_OF_SPACE, "too big"),
            }
        }
        kubelet({"waiting": {"reason": "CrashLoopBackOff"}}, last=crash)
        await wired.resync.once()
        await wired.reconcile(key)
        assert reported()[1] == ("False", "OutOfSpace")
        wired.requests.methods.clear()
        await wired.reconcile(key)
        assert wired.requests.methods == []


async def test_a_pin_moves_to_the_next_configuration_before_the_old_one_goes(
    parts, chat, kubelet, namespace, api
):
    chat(**HUB)
    key = Key(namespace, "chat")
    async with parts() as wired:
        await wired.resync.once()
        await wired.reconcile(key)
        done = words(TerminationReason.FETCHED, "done", report(ModelState.READY, 100))
        kubelet({"terminated": {"exitCode": 0, "message": done}}, ready=True)
        await wired.resync.once()
        await wired.reconcile(key)
        api.delete(POD, namespace, "chat-1")
        api.merge(RESOURCE, namespace, "chat", {"spec": {"pageSize": 64}})
        await wired.resync.once()
        await wired.reconcile(key)
        maps = api.items(CONFIG_MAP, namespace, OWNED_SELECTOR)
        assert [json.loads(each["data"][names.PINS_FILE_NAME]) for each in maps] == [
            {TARGET: COMMIT}
        ] * 2
        counts = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
        generation = api.get(DEPLOYMENT, namespace, "chat")["metadata"]["generation"]
        complete = {"observedGeneration": generation, **dict.fromkeys(counts, 1)}
        api.merge(DEPLOYMENT, namespace, "chat", {"status": complete}, "/status")
        await wired.resync.once()
        await wired.reconcile(key)
    (left,) = api.items(CONFIG_MAP, namespace, OWNED_SELECTOR)
    assert json.loads(left["data"][names.PINS_FILE_NAME]) == {TARGET: COMMIT}


async def test_where_image_volumes_are_off_nothing_runs_without_its_model(
    parts, chat, namespace, api
):
    chat(model={"uri": IMAGE})
    async with parts() as wired:
        await wired.resync.once()
        assert await wired.reconcile(Key(namespace, "chat")) == LOOK_AGAIN_S
    conditions = api.get(RESOURCE, namespace, "chat")["status"]["conditions"]
    ready = next(each for each in conditions if each["type"] == "Ready")
    assert ready["reason"] == "ImageVolumesOff"
    assert "feature gate ImageVolume" in ready["message"]
    assert api.get(DEPLOYMENT, namespace, "chat") is None


def test_where_image_volumes_are_on_the_pod_has_its_model(tmp_path, plane, example, build):
    # `plane` first: it puts the folder of its package on the path.
    from localnode.controlplane import ApiServer

    manifest = example(model={"uri": IMAGE})
    deployment = build(manifest)["Deployment"]
    with ApiServer.start(tmp_path, feature_gates=["ImageVolume"]) as server:
        answer = httpx.post(
            server.url + DEPLOYMENT.path("default"),
            params={"dryRun": "All", "fieldValidation": "Strict"},
            headers={"Authorization": f"Bearer {server.admin_token}"},
            json=deployment,
            verify=ssl.create_default_context(cafile=str(server.authority_file)),
            timeout=30,
        )
    assert answer.status_code == 201, answer.text
    assert image_volumes(answer.json()) == {"model-target"}
    (container,) = answer.json()["spec"]["template"]["spec"]["containers"]
    assert "/models/target" in [each["mountPath"] for each in container["volumeMounts"]]
