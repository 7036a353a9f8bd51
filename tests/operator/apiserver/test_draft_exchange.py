"""Edits of the draft on a real API server, with real engines over HTTP, under load.

The engines read the models where the boot file names them, as in a pod.
"""

import json
import shutil

import httpx
import pytest

from checks.detection.damage import write_damaged
from specdecode_api import names
from specdecode_api.metrics import INFO
from specdecode_operator.engines import draft_requests
from specdecode_operator.objects.kinds import CONFIG_MAP, DEPLOYMENT, RESOURCE
from tests.operator.apiserver.test_trials import MODELS, Kubelet, Load
from tests.operator.apiserver.test_trials import go_on as go_on

pytestmark = pytest.mark.apiserver

REPLICAS = 2


class KubeletWithModels(Kubelet):
    """Mounts the claim `models` of the test, so that paths are those of the boot file."""

    def _boot(self, name, address):
        draft = json.loads(self._file(name))["speculation"]["draft_path"]
        boot = super()._boot(name, address)
        boot["speculation"]["draft_path"] = draft
        return boot

    def _file(self, name):
        return self._api.get(CONFIG_MAP, self._namespace, name)["data"][names.BOOT_FILE_NAME]

    def restart_first(self):
        """Let a pod end, in whose place the Deployment makes another one."""
        name, (process, _, _, _) = next(iter(self.engines.items()))
        self._end(name, process)


@pytest.fixture
def claim(tmp_path, monkeypatch):
    """What pods mount of the claim `models`."""
    monkeypatch.setattr(names, "MODELS_FOLDER", str(tmp_path / "volumes"))
    folder = tmp_path / "volumes" / "target"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def kubelet(api, namespace, tmp_path, claim):
    for model in ("target", "eagle3"):
        shutil.copytree(MODELS / model, claim / model)
    write_damaged("fc permuted", MODELS / "eagle3", claim / "other")
    shaped = shutil.copytree(MODELS / "eagle3", claim / "other-rope")
    config = json.loads((shaped / "config.json").read_text())
    (shaped / "config.json").write_text(json.dumps(config | {"rope_theta": 5e5}))
    lacking = shutil.copytree(MODELS / "eagle3", claim / "lacking")
    (lacking / "model.safetensors").unlink()
    made = KubeletWithModels(api, namespace, tmp_path)
    yield made
    made.close()


def speculation(draft):
    return {
        "algorithm": "EAGLE3",
        "draft": {"uri": f"pvc://models/{draft}"},
        "adaptive": {"policy": "Static", "batchSizes": [{"from": 1, "candidateSteps": [2]}]},
    }


@pytest.fixture
def status(api, namespace):
    def read():
        return api.get(RESOURCE, namespace, "chat").get("status") or {}

    return read


@pytest.fixture
def exchanged(status):
    def has(state, draft):
        found = status().get("draftExchange") or {}
        return (found.get("state"), found.get("uri")) == (state, f"pvc://models/{draft}")

    return has


def drafts(kubelet):
    urls = [f"http://{each}:{kubelet.port}{names.PATH_DRAFT}" for each in kubelet.addresses()]
    return {httpx.get(url, timeout=10).json()["path"].rpartition("/")[2] for url in urls}


def infos(kubelet):
    """Config hashes that the engines report in their metrics."""
    found = set()
    for address in kubelet.addresses():
        text = httpx.get(f"http://{address}:{kubelet.port}{names.PATH_METRICS}", timeout=10).text
        (line,) = [each for each in text.splitlines() if each.startswith(INFO.sample + "{")]
        found.add(line.partition('config_hash="')[2].partition('"')[0])
    return found


async def test_running_engines_exchange_the_draft_that_an_edit_names(
    parts, chat, kubelet, status, exchanged, go_on, api, namespace
):
    chat(device="CPU", speculation=speculation("eagle3"), replicas=REPLICAS)
    async with parts(engine_port=kubelet.port) as wired:
        await go_on(wired, lambda: len(kubelet.addresses()) == REPLICAS)
        first = status()["configHash"]
        load = Load(kubelet)
        try:
            await go_on(wired, lambda: load.count > 20, load)
            edit = {"spec": {"speculation": speculation("other")}}
            api.merge(RESOURCE, namespace, "chat", edit)
            await go_on(wired, lambda: exchanged("Exchanged", "other"), load)
            count = load.count
            await go_on(wired, lambda: load.count > count + 10, load)
        finally:
            load.stop()
        assert drafts(kubelet) == {"other"}
        assert kubelet.started == [(first, None)] * REPLICAS
        assert infos(kubelet) == {status()["configHash"]} != {first}
        assert load.failures == []
        assert [len(texts) for texts in load.answers.values()] == [1, 1]

        kubelet.restart_first()
        await go_on(wired, lambda: len(kubelet.addresses()) == REPLICAS)
        assert drafts(kubelet) == {"other"}
        assert kubelet.started == [(first, None)] * (REPLICAS + 1)
        (deployment,) = api.items(DEPLOYMENT, namespace)
        own = deployment["metadata"]["annotations"][names.ANNOTATION_CONFIG_HASH]
        assert own == status()["configHash"]
        assert "draftExchange" in status()


async def test_engines_keep_their_draft_where_they_cannot_read_another_and_restart_for_other_shapes(
    parts, chat, kubelet, claim, status, exchanged, go_on, api, namespace, monkeypatch
):
    monkeypatch.setattr(draft_requests, "RETRY_S", 1.0)
    chat(device="CPU", speculation=speculation("eagle3"), replicas=1)
    async with parts(engine_port=kubelet.port) as wired:
        await go_on(wired, lambda: len(kubelet.addresses()) == 1)
        first = status()["configHash"]
        edit = {"spec": {"speculation": speculation("lacking")}}
        api.merge(RESOURCE, namespace, "chat", edit)
        await go_on(wired, lambda: exchanged("Refused", "lacking"))
        assert drafts(kubelet) == {"eagle3"}
        (stalled,) = [each for each in status()["conditions"] if each["type"] == "Stalled"]
        assert (stalled["status"], stalled["reason"]) == ("True", "DraftRefused")
        assert "spec.speculation.draft.uri pvc://models/lacking" in stalled["message"]
        shutil.copy(MODELS / "eagle3" / "model.safetensors", claim / "lacking")
        await go_on(wired, lambda: exchanged("Exchanged", "lacking"))
        assert drafts(kubelet) == {"lacking"}
        assert kubelet.started == [(first, None)]

        edit = {"spec": {"speculation": speculation("other-rope")}}
        api.merge(RESOURCE, namespace, "chat", edit)
        await go_on(wired, lambda: exchanged("ReplacingPods", "other-rope"))
        await go_on(wired, lambda: [each[3][0] for each in kubelet.engines.values()] != [first])
        await go_on(wired, lambda: len(kubelet.engines) == len(kubelet.addresses()) == 1)
    assert drafts(kubelet) == {"other-rope"}
    assert kubelet.started == [(first, None), (status()["configHash"], None)]
    assert "cannot exchange its draft" in status()["draftExchange"]["message"]
    assert "rope" in status()["draftExchange"]["message"]
