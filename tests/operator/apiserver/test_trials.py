"""Trials on a real API server, with real engines at the addresses of their pods, under load.

No kubelet and no Deployment controller run: the test makes the pods that Deployments ask for, each
with an engine of its own on an address of the loopback network, started from the ConfigMap that
the pod would mount.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from itertools import count
from pathlib import Path

import httpx
import pytest

from specdecode_api import names
from specdecode_operator.kinds import CONFIG_MAP, DEPLOYMENT, POD, RESOURCE
from specdecode_operator.observed import Key

pytestmark = pytest.mark.apiserver

MODELS = Path(__file__).resolve().parents[3] / "examples" / "models"
FREE_CHOICE = [{"from": 1, "candidateSteps": [1, 16]}]
TOO_DEEP = [{"from": 1, "candidateSteps": [16]}]
QUICK = {
    "editPolicy": "Guarded",
    "mode": "Manual",
    "guard": {
        "minRequests": 20,
        "minStratumRequests": 5,
        "minDuration": "5s",
        "maxDuration": "6m",
        "warmUp": "2s",
    },
    "switchback": {"block": "10s", "washout": "1s", "minPairs": 2},
}
BODIES = (
    {"prompt": "Speculative decoding is", "max_tokens": 16, "temperature": 0},
    {"prompt": "Once upon a time", "max_tokens": 16, "temperature": 0.8, "seed": 7},
)
DEADLINE_S = 400.0


def speculation(table, draft="pvc://models/draft"):
    return {
        "algorithm": "STANDALONE",
        "draft": {"uri": draft},
        "adaptive": {"policy": "Goodput", "batchSizes": table},
    }


class Kubelet:
    """Runs the pods that Deployments ask for."""

    def __init__(self, api, namespace, folder):
        self._api, self._namespace, self._folder = api, namespace, folder
        self._numbers = count(2)
        self.engines = {}
        self._ended = []
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def sync(self):
        """Start and end pods, and report on them; called again and again."""
        wanted = {each["metadata"]["name"]: each for each in self._deployments()}
        for name, (process, address, owner, config) in list(self.engines.items()):
            deployment = wanted.get(owner)
            template = deployment and deployment["spec"]["template"]["metadata"]["annotations"]
            if not template or template[names.ANNOTATION_CONFIG_HASH] != config:
                self._end(name, process)
            elif self._is_ready(address):
                self._report(name, address)
        for owner, deployment in wanted.items():
            mine = [each for each in self.engines.values() if each[2] == owner]
            for _ in range(deployment["spec"]["replicas"] - len(mine)):
                self._start(owner, deployment["spec"]["template"])
            self._report_deployment(deployment)

    def addresses(self):
        """Where a Service would send requests."""
        pods = self._api.items(POD, self._namespace)
        return [pod["status"]["podIP"] for pod in pods if pod.get("status", {}).get("podIP")]

    def close(self):
        for process in (*self._ended, *(each[0] for each in self.engines.values())):
            process.kill()
            process.wait()

    def _deployments(self):
        return self._api.items(DEPLOYMENT, self._namespace)

    def _start(self, owner, template):
        number = next(self._numbers)
        name, address = f"{owner}-{number}", f"127.0.0.{number}"
        config = template["metadata"]["annotations"][names.ANNOTATION_CONFIG_HASH]
        metadata = {**template["metadata"], "name": name, "namespace": self._namespace}
        self._api.create(POD, {"metadata": metadata, "spec": template["spec"]})
        file = self._folder / f"{name}.json"
        file.write_text(json.dumps(self._boot(f"chat-{config}", address)))
        with (self._folder / f"{name}.log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "specdecode_engine", "--boot", str(file)],
                stdout=log,
                stderr=log,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
        self.engines[name] = (process, address, owner, config)

    def _boot(self, name, address):
        data = self._api.get(CONFIG_MAP, self._namespace, name)["data"]
        boot = json.loads(data[names.BOOT_FILE_NAME])
        boot["model"] |= {"path": str(MODELS / "target"), "context_length": 256}
        draft = boot["speculation"]["draft_path"].rpartition("/")[2]
        boot["speculation"] |= {"draft_path": str(MODELS / draft), "profile_seconds": 1.0}
        boot["server"] |= {"host": address, "port": self.port, "management_port": 0}
        boot |= {"device": "cpu", "threads": 1}
        boot["memory"]["kv_cache_bytes"] = 32 * 2**20
        return boot

    def _is_ready(self, address):
        try:
            url = f"http://{address}:{self.port}{names.PATH_READY}"
            return httpx.get(url, timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def _report(self, name, address):
        pod = self._api.get(POD, self._namespace, name)
        if pod["status"].get("podIP"):
            return
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
        status["conditions"] = [{"type": "Ready", "status": "True"}]
        self._api.merge(POD, self._namespace, name, {"status": status}, "/status")

    def _report_deployment(self, deployment):
        owner, replicas = deployment["metadata"]["name"], deployment["spec"]["replicas"]
        addresses = set(self.addresses())
        ready = len([e for e in self.engines.values() if e[2] == owner and e[1] in addresses])
        status = {
            "observedGeneration": deployment["metadata"]["generation"],
            **dict.fromkeys(("replicas", "updatedReplicas"), replicas),
            **dict.fromkeys(("readyReplicas", "availableReplicas"), ready),
        }
        if deployment.get("status", {}) | status != deployment.get("status", {}):
            self._api.merge(DEPLOYMENT, self._namespace, owner, {"status": status}, "/status")

    def _end(self, name, process):
        """Endpoints forget the pod first, then its engine drains."""
        self._api.client.delete(POD.path(self._namespace, name), params={"gracePeriodSeconds": "0"})
        process.terminate()
        self._ended.append(process)
        del self.engines[name]


class Load:
    """Requests from several threads, to any address at a time; every answer is kept."""

    def __init__(self, kubelet, threads=6):
        self._kubelet, self._is_over = kubelet, threading.Event()
        self.answers: dict[int, set[str]] = {0: set(), 1: set()}
        self.failures, self.count = [], 0
        self._addresses = kubelet.addresses()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    def refresh(self):
        """Refresh the addresses, as endpoints are refreshed."""
        self._addresses = self._kubelet.addresses()

    def _run(self, number):
        with httpx.Client(timeout=60) as client:
            for turn in count(number):
                if self._is_over.is_set():
                    return
                addresses = self._addresses
                body = BODIES[turn % 2]
                url = f"http://{addresses[turn % len(addresses)]}:{self._kubelet.port}"
                answer = client.post(f"{url}/v1/completions", json={"model": "chat", **body})
                self.count += 1
                if answer.status_code == 200:
                    self.answers[turn % 2].add(answer.json()["choices"][0]["text"])
                else:
                    self.failures.append(answer.text)

    def stop(self):
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)


@pytest.fixture
def kubelet(api, namespace, tmp_path):
    kubelet = Kubelet(api, namespace, tmp_path)
    yield kubelet
    kubelet.close()


@pytest.fixture
def status(api, namespace):
    def read():
        return api.get(RESOURCE, namespace, "chat").get("status") or {}

    return read


@pytest.fixture
def go_on(kubelet, namespace):
    """Reconcile again and again, as the operator does, until something holds."""

    async def until(wired, holds, load=None):
        key = Key(namespace, "chat")
        async with asyncio.timeout(DEADLINE_S):
            while not holds():
                await asyncio.to_thread(kubelet.sync)
                if load is not None:
                    load.refresh()
                await wired.resync.once()
                await wired.reconcile(key)
                await asyncio.sleep(0.2)

    return until


def managers(resource):
    """Who owns fields of the spec, and who of the status."""
    spec, status = set(), set()
    for entry in resource["metadata"]["managedFields"]:
        if "f:spec" in entry["fieldsV1"]:
            spec.add(entry["manager"])
        if "f:status" in entry["fieldsV1"]:
            status.add(entry["manager"])
    return spec, status


async def test_a_table_too_deep_is_tried_rejected_and_taken_back(
    parts, chat, kubelet, status, go_on, api, namespace, events
):
    chat(
        device="CPU",
        speculation=speculation(FREE_CHOICE),
        rollout=QUICK,
        replicas=2,
    )
    async with parts(engine_port=kubelet.port) as wired:
        await go_on(wired, lambda: len(kubelet.addresses()) == 2)
        before = api.get(RESOURCE, namespace, "chat")
        load = Load(kubelet)
        try:
            spec = {"spec": {"speculation": speculation(TOO_DEEP)}}
            api.merge(RESOURCE, namespace, "chat", spec)
            await go_on(wired, lambda: _measures(status()), load)
        except BaseException:
            load.stop()
            raise
    # The operator ends here, in the middle; the next one continues from the record.
    half_way = status()["trial"]
    async with parts(engine_port=kubelet.port) as wired:
        try:
            await go_on(wired, lambda: status().get("history"), load)
        finally:
            load.stop()
    ended = status()["history"][0]
    assert ended["id"] == half_way["id"]
    assert ended["startedAt"] == half_way["startedAt"]
    assert (ended["kind"], ended["verdict"]) == ("Hot", "RolledBack"), {
        key: ended.get(key) for key in ("reason", "message", "interval", "arms", "strata")
    }
    assert all(arm["requests"] > 0 for arm in ended["arms"])
    assert json.loads(ended["evidence"])["evidence"]["strata"]
    assert load.failures == []
    assert load.count > 40
    assert [len(texts) for texts in load.answers.values()] == [1, 1]
    for address in kubelet.addresses():
        url = f"http://{address}:{kubelet.port}{names.PATH_TABLE}"
        assert httpx.get(url).json()["entries"]["1"]["candidate_steps"] == [1, 16]
    assert status()["effective"]["reason"] == "Guarded"
    after = api.get(RESOURCE, namespace, "chat")
    wanted = {**before["spec"], "speculation": after["spec"]["speculation"]}
    assert after["spec"] == wanted
    (entry,) = after["spec"]["speculation"]["adaptive"]["batchSizes"]
    assert entry.items() >= TOO_DEEP[0].items()
    spec_owners, status_owners = managers(after)
    assert not spec_owners & {names.FIELD_MANAGER, names.STATUS_FIELD_MANAGER}
    assert names.STATUS_FIELD_MANAGER in status_owners
    assert {"TrialStarted", "TrialRolledBack"} <= set(events())


def _measures(status):
    trial = status.get("trial") or {}
    return trial.get("phase") == "Measuring" and trial.get("measuredSeconds", 0) > 0


async def test_a_wrong_draft_is_caught_by_a_canary_and_goes(
    parts, chat, kubelet, status, go_on, api, namespace
):
    chat(
        device="CPU",
        speculation=speculation(FREE_CHOICE),
        rollout=QUICK | {"canary": {"baseline": "Stable", "replicas": 1}},
        replicas=1,
    )
    async with parts(engine_port=kubelet.port) as wired:
        await go_on(wired, lambda: len(kubelet.addresses()) == 1)
        old = status()["configHash"]
        load = Load(kubelet)
        try:
            # A head for features, in the place of a draft of its own: it does not load.
            wrong = speculation(FREE_CHOICE, draft="pvc://models/eagle3")
            api.merge(RESOURCE, namespace, "chat", {"spec": {"speculation": wrong}})
            await go_on(wired, lambda: status().get("trial"), load)
            assert status()["trial"]["kind"] == "Canary"
            await go_on(wired, lambda: len(kubelet.engines) == 2, load)
            canary = next(name for name in kubelet.engines if "canary" in name)
            process = kubelet.engines[canary][0]
            await go_on(wired, lambda: process.poll() is not None, load)
            crashed = {
                "name": "engine", "image": "e", "imageID": "e", "ready": False, "restartCount": 2,
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"exitCode": process.returncode}},
            }  # fmt: skip
            said = {"status": {"containerStatuses": [crashed]}}
            api.merge(POD, namespace, canary, said, "/status")
            await go_on(wired, lambda: status().get("history"), load)
            await go_on(wired, lambda: len(kubelet.engines) == 1, load)
        finally:
            load.stop()
    ended = status()["history"][0]
    assert (ended["kind"], ended["verdict"]) == ("Canary", "RolledBack")
    assert status()["configHash"] == old
    assert load.failures == []
    assert [each["metadata"]["name"] for each in api.items(DEPLOYMENT, namespace)] == ["chat"]
