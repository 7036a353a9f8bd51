"""`hf://` models in real pods, from a hub that runs next to the node and requires a token."""

import base64
import json
import threading

import httpx
import pytest

from demo.__main__ import resource_state
from demo.checkpoints import MODELS
from demo.kubernetes import wait_until
from localnode.network import NODE_ADDRESS
from tests.engine.fetch.hub_server import COMMIT, serving_hub

pytestmark = [pytest.mark.node, pytest.mark.timeout(900)]

NAME = "fetched"
SECONDS = 300
TOKEN = "hf_right"


@pytest.fixture
def hub(cluster):
    """A hub on the node's address with two private models, and Secrets for its token."""
    if not cluster.is_local:
        pytest.skip("the hub is reached by the local node's address")
    with serving_hub(NODE_ADDRESS) as found:
        for name in ("target", "draft"):
            files = {file.name: file.read_bytes() for file in (MODELS / name).iterdir()}
            found.add(f"examples/{name}", files, token=TOKEN)
        yield found
        cluster.kubectl("delete", "sdd", NAME, "--ignore-not-found", "--wait=false")
        cluster.kubectl("delete", "secret", NAME, "--ignore-not-found")


def resource(hub):
    return {
        "apiVersion": "specdecode.io/v1alpha1",
        "kind": "SpecDecodeDeployment",
        "metadata": {"name": NAME},
        "spec": {
            "download": {"endpoint": hub.url, "tokenSecret": {"name": NAME}},
            "model": {"uri": "hf://examples/target@main", "servedName": NAME},
            "resources": {"requests": {"cpu": "50m", "memory": "512Mi"}},
            "engine": {"device": "CPU", "threads": 1, "kvCache": {"size": "64Mi"}},
            "speculation": {
                "algorithm": "STANDALONE",
                "draft": {"uri": "hf://examples/draft@main"},
                "numSteps": 3,
            },
        },
    }


def put_token(cluster, token):
    data = {"HF_TOKEN": base64.b64encode(token.encode()).decode()}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": NAME}, "data": data}
    cluster.kubectl("apply", "-f", "-", given=json.dumps(secret))


def condition(cluster, kind):
    conditions = cluster.get("sdd", NAME).get("status", {}).get("conditions", [])
    return next((each for each in conditions if each["type"] == kind), {})


def test_pods_fetch_from_a_hub_and_the_status_shows_progress(cluster, hub) -> None:
    """A wrong token is reported, a right one fixes it, progress is shown, the engine answers."""
    put_token(cluster, "hf_wrong")
    cluster.kubectl("apply", "-f", "-", given=json.dumps(resource(hub)))

    def without_rights():
        found = condition(cluster, "ModelReady")
        is_reported = (found.get("status"), found.get("reason")) == ("False", "Unauthorized")
        return None if is_reported else f"ModelReady is {found}"

    wait_until(without_rights, print, SECONDS)
    assert "hf_wrong" not in json.dumps(cluster.get("sdd", NAME)["status"])

    hub.faults.hold = threading.Event()
    put_token(cluster, TOKEN)

    def not_downloading():
        models = cluster.get("sdd", NAME)["status"].get("models") or [{}]
        is_reported = (
            models[0].get("state") == "Downloading" and models[0].get("bytesTotal", 0) > 3e6
        )
        return None if is_reported else f"models are {models}"

    wait_until(not_downloading, print, SECONDS)
    found = condition(cluster, "ModelReady")
    assert found["status"] == "False"
    hub.faults.hold.set()
    wait_until(lambda: resource_state(cluster, NAME), print, SECONDS)
    models = cluster.get("sdd", NAME)["status"]["models"]
    assert [(each["state"], each["revision"]) for each in models] == [("Ready", COMMIT)] * 2
    assert condition(cluster, "ModelReady")["status"] == "True"
    with cluster.port_forward(f"service/{NAME}", 80) as url:
        body = {"model": NAME, "prompt": "Count from one", "max_tokens": 16, "temperature": 0}
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    assert answer.json()["choices"][0]["text"]
    assert hub.leaked == []
