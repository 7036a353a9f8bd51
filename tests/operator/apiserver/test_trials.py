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
import time
from itertools import count
from pathlib import Path

import httpx
import pytest

from checks.trials.foreign import write_foreign_draft
from specdecode_api import names
from specdecode_api.boot import EngineBoot
from specdecode_operator.objects.kinds import CONFIG_MAP, DEPLOYMENT, POD, RESOURCE, TRIAL
from specdecode_operator.objects.observed import Key

pytestmark = pytest.mark.apiserver

MODELS = Path(__file__).resolve().parents[3] / "examples" / "models"
FREE_CHOICE = [{"from": 1, "candidateSteps": [1, 16]}]
FIVE_STEPS = [{"from": 1, "candidateSteps": [5]}]
"""So many are drafted whatever is accepted: a draft that does not fit shows in full."""
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


def made_for(template):
    """Configuration and block of a trial that a template is for."""
    annotations = template["metadata"]["annotations"]
    return annotations[names.ANNOTATION_CONFIG_HASH], annotations.get(names.ANNOTATION_BLOCK)


class Kubelet:
    """Runs the pods that Deployments ask for."""

    def __init__(self, api, namespace, folder):
        self._api, self._namespace, self._folder = api, namespace, folder
        self._numbers = count(2)
        self.engines = {}
        self.started = []
        """Configuration and block of each pod, in the order in which they were started."""
        self._ended = []
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def sync(self):
        """Start and end pods, and report on them; called again and again."""
        wanted = {each["metadata"]["name"]: each for each in self._deployments()}
        for name, (process, address, owner, _) in list(self.engines.items()):
            if owner not in wanted:
                self._end(name, process)
            elif self._is_ready(address):
                self._report(name, address)
        for owner, deployment in wanted.items():
            template, replicas = deployment["spec"]["template"], deployment["spec"]["replicas"]
            mine = {n: each for n, each in self.engines.items() if each[2] == owner}
            new = [n for n, each in mine.items() if each[3] == made_for(template)]
            for _ in range(replicas - len(new)):
                self._start(owner, template)
            serving = self.addresses()
            if len([n for n in new if mine[n][1] in serving]) >= replicas:
                for name in mine.keys() - new:  # what they replace ends once they serve
                    self._end(name, mine[name][0])
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
        self.started.append(made_for(template))
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
        self.engines[name] = (process, address, owner, made_for(template))

    def _boot(self, name, address):
        data = self._api.get(CONFIG_MAP, self._namespace, name)["data"]
        read = EngineBoot.model_validate_json(data[names.BOOT_FILE_NAME])
        boot = read.model_dump(mode="json")
        boot["model"] |= {"path": str(MODELS / "target"), "context_length": 256}
        draft = boot["speculation"]["draft_path"].rpartition("/")[2]
        own = self._folder / draft
        place = own if own.exists() else MODELS / draft
        boot["speculation"] |= {"draft_path": str(place), "profile_seconds": 1.0}
        boot["server"] |= {"host": address, "port": self.port, "management_port": 0}
        boot["server"]["router_token_path"] = None  # needs a management port of its own
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
                body, address = BODIES[turn % 2], addresses[turn % len(addresses)]
                url = f"http://{address}:{self._kubelet.port}/v1/completions"
                try:
                    answer = client.post(url, json={"model": "chat", **body})
                except httpx.TransportError as error:
                    # An engine that ends may close a kept connection while a request is on the way.
                    if address in self._kubelet.addresses():
                        self.failures.append(repr(error))
                    continue
                if "retry-after" in answer.headers:
                    continue  # an engine that stops: no Service keeps requests from it here
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
def trial(api, namespace):
    """Status of the only trial; {} before it has one."""

    def read():
        return next((each.get("status") or {} for each in api.items(TRIAL, namespace)), {})

    return read


@pytest.fixture
def go_on(kubelet, namespace, api, status):
    """Reconcile again and again, as the operator does, until something holds."""

    async def until(wired, holds, load=None):
        key = Key(namespace, "chat")
        ends_at = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < ends_at, (status(), api.items(TRIAL, namespace))
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
    parts, chat, kubelet, status, trial, go_on, api, namespace, events
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
            await go_on(wired, lambda: _measures(trial()), load)
        except BaseException:
            load.stop()
            raise
    # The operator ends here, in the middle; the next one continues from the record.
    half_way = trial()
    async with parts(engine_port=kubelet.port) as wired:
        try:
            await go_on(wired, lambda: status().get("lastTrial"), load)
        finally:
            load.stop()
    ended = trial()
    assert ended["candidate"]["configHash"] == half_way["candidate"]["configHash"]
    assert ended["startedAt"] == half_way["startedAt"]
    assert (ended["strategy"], ended["verdict"]) == ("Hot", "RolledBack"), {
        key: ended.get(key) for key in ("reason", "message", "interval", "baseline", "candidate")
    }
    assert all(ended[role]["requests"] > 0 for role in ("baseline", "candidate"))
    assert ended["evidence"]["evidence"]["strata"]
    assert "state" in half_way
    assert "state" not in ended
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


def _measures(trial):
    return trial.get("phase") == "Measuring" and trial.get("measuredSeconds", 0) > 0


async def test_a_wrong_draft_is_caught_by_a_canary_and_goes(
    parts, chat, kubelet, status, trial, go_on, api, namespace
):
    chat(
        device="CPU",
        speculation=speculation(FREE_CHOICE),
        rollout=QUICK | {"strategy": "Canary", "canary": {"baseline": "Stable", "replicas": 1}},
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
            await go_on(wired, lambda: trial().get("strategy"), load)
            assert trial()["strategy"] == "Canary"
            await go_on(wired, lambda: len(kubelet.engines) == 2, load)
            canary = next(name for name in kubelet.engines if "canary" in name)
            process = kubelet.engines[canary][0]
            await go_on(wired, lambda: process.poll() is not None, load)
            crashed = {
                "name": "engine", "image": "e", "imageID": "e", "ready": False, "restartCount": 2,
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"exitCode": process.returncode}},
            }  # fmt: skip
            crash_status = {"status": {"containerStatuses": [crashed]}}
            api.merge(POD, namespace, canary, crash_status, "/status")
            await go_on(wired, lambda: status().get("lastTrial"), load)
            await go_on(wired, lambda: len(kubelet.engines) == 1, load)
        finally:
            load.stop()
    ended = trial()
    assert (ended["strategy"], ended["verdict"]) == ("Canary", "RolledBack")
    assert status()["configHash"] == old
    assert load.failures == []
    assert [each["metadata"]["name"] for each in api.items(DEPLOYMENT, namespace)] == ["chat"]


async def test_a_draft_that_fits_nothing_is_stopped_in_its_first_block_on_the_only_pod(
    parts, chat, kubelet, status, trial, go_on, api, namespace, tmp_path
):
    write_foreign_draft(MODELS / "eagle3", tmp_path / "foreign")
    good = speculation(FIVE_STEPS, draft="pvc://models/eagle3") | {"algorithm": "EAGLE3"}
    guard = {
        "minRequests": 20, "minStratumRequests": 5, "minDuration": "5s", "maxDuration": "4h",
        "warmUp": "2s",
    }  # fmt: skip
    chat(device="CPU", speculation=good, rollout=QUICK | {"guard": guard}, replicas=1)
    async with parts(engine_port=kubelet.port) as wired:
        await go_on(wired, lambda: len(kubelet.addresses()) == 1)
        old = status()["configHash"]
        load = Load(kubelet)
        try:
            await go_on(wired, lambda: load.count > 60, load)
            foreign = good | {"draft": {"uri": "pvc://models/foreign"}}
            api.merge(RESOURCE, namespace, "chat", {"spec": {"speculation": foreign}})
            await go_on(wired, lambda: status().get("lastTrial"), load)
            await go_on(wired, lambda: len(kubelet.engines) == 1, load)
        finally:
            load.stop()
    ended = trial()
    assert (ended["strategy"], ended["verdict"]) == ("Switchback", "RolledBack"), ended
    assert ended["reason"] == "AcceptLengthFell"
    assert status()["effective"]["reason"] == "Guarded"
    assert [config for config, _ in kubelet.started][-1] == old
    # Each block had a pod of its own, and no Deployment but that of the resource was used.
    blocks = [block for _, block in kubelet.started if block]
    assert len(blocks) == len(set(blocks)) <= 2
    assert [each["metadata"]["name"] for each in api.items(DEPLOYMENT, namespace)] == ["chat"]
    assert load.failures == []
    assert [len(texts) for texts in load.answers.values()] == [1, 1]
