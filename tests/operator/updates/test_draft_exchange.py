"""A changed draft: running engines exchange it, or pods are replaced, and the status reports which.

Engines and the Deployment controller are played here; `apiserver/test_draft_exchange.py` has real
ones over HTTP.
"""

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from specdecode_api import names
from specdecode_api.report import DraftInUse
from specdecode_operator import owned
from specdecode_operator.objects import resource
from specdecode_operator.objects.kinds import ChildId, Manifest, child_id
from specdecode_operator.objects.observed import DraftAnswer, Observed
from specdecode_operator.plan.plan import plan
from specdecode_operator.settings import Settings
from specdecode_operator.status.outcome import Outcome
from specdecode_operator.status.status import status
from specdecode_operator.updates.draft_exchange import PodState, WantedDraft, asked_pods, presented

SETTINGS = Settings(engine_image="specdecode-engine:test")
NOW = datetime(2026, 11, 25, 12, 0, tzinfo=UTC)
REPLICAS = 3
OTHER = "pvc://models/eagle3-2"
REFUSED = {
    "Ready": ("False", "DraftRefused"),
    "Stalled": ("True", "DraftRefused"),
    "Degraded": ("True", "DraftRefused"),
    "Progressing": ("False", "DraftRefused"),
    "Reconciling": ("False", "AtRest"),
}


@dataclass
class Engine:
    """The draft of one engine, and what it does when it is asked for another."""

    path: str
    config_hash: str
    refuses: bool = False
    needs_restart: bool = False
    is_reading: bool = False
    report: DraftInUse | None = None

    def put(self, wanted: WantedDraft) -> None:
        if self.refuses or self.needs_restart:
            self.report = self.state(
                refused_path=wanted.path,
                refused_needs_restart=self.needs_restart,
                latest_refusal="another shape" if self.needs_restart else "lacks fc.weight",
            )
        elif self.is_reading:
            self.report = self.state(changing_to=wanted.path)
        else:
            self.path, self.config_hash = wanted.path, wanted.config_hash
            self.report = self.state()

    def state(self, **more: Any) -> DraftInUse:
        return DraftInUse(path=self.path, config_hash=self.config_hash, **more)


@dataclass
class World:
    """A resource with its objects, pods and engines."""

    manifest: Manifest
    as_live: Callable[[Manifest], Manifest]
    children: dict[ChildId, Manifest] = field(default_factory=dict)
    pods: list[Manifest] = field(default_factory=list)
    engines: dict[str, Engine] = field(default_factory=dict)
    waited_s: float = 1.0
    replaced: int = 0

    def reconcile(self):
        """Carry out one plan, and write the status; returns the plan."""
        answers = {
            uid: DraftAnswer(engine.report, "", self.asked(), self.waited_s)
            for uid, engine in self.engines.items()
            if engine.report is not None
        }
        found = {child_id(child): child for child in self.children.values()}
        observed = Observed(self.manifest, found, tuple(self.pods), at=NOW, drafts=answers)
        observed = presented(observed)
        decided = plan(observed, SETTINGS)
        for write in decided.writes:
            self.write(write.manifest)
        for pruned in decided.prunes:
            del self.children[child_id(pruned)]
        self.manifest["status"] = status(observed, decided, Outcome(), NOW)
        if decided.exchange is not None and decided.exchange.wanted is not None:
            for pod in asked_pods(observed, decided.exchange.wanted):
                engine = self.engines[pod["metadata"]["uid"]]
                engine.report = engine.report or engine.state()
                state = decided.exchange.wanted.state(DraftAnswer(engine.report))
                if state in (PodState.WAITING, PodState.REFUSED):
                    engine.put(decided.exchange.wanted)
        return decided

    def asked(self):
        return self.hash_of(self.manifest)

    def hash_of(self, manifest):
        return owned.build(resource.parse(manifest), SETTINGS.engine_image).config_hash

    def write(self, manifest):
        before = self.children.get(child_id(manifest))
        self.children[child_id(manifest)] = now = self.as_live(manifest)
        if manifest["kind"] != "Deployment":
            return
        counts = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
        wanted = manifest["spec"]["replicas"]
        now["status"] = {"observedGeneration": 1, **dict.fromkeys(counts, wanted)}
        if before is None or self.template_hash(before) != self.template_hash(now):
            self.replaced += bool(self.pods)
            self.pods, self.engines = [], {}
            self.scale(wanted)

    def scale(self, count):
        """Make pods, whose engines begin with the boot file that their template names."""
        template = self.deployment["spec"]["template"]
        own = self.template_hash(self.deployment)
        for number in range(len(self.pods), count):
            uid = f"{own}-{number}"
            metadata = {
                "name": f"chat-{number}",
                "namespace": "default",
                "uid": uid,
                "annotations": dict(template["metadata"]["annotations"]),
                "labels": dict(template["metadata"]["labels"]),
            }
            self.pods.append(
                {
                    "kind": "Pod",
                    "metadata": metadata,
                    "spec": {},
                    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
                }
            )
            boot = self.boot_file(own)
            self.engines[uid] = Engine(boot["speculation"]["draft_path"], boot["config_hash"])

    @property
    def deployment(self):
        return next(each for each in self.children.values() if each["kind"] == "Deployment")

    def template_hash(self, deployment):
        return deployment["spec"]["template"]["metadata"]["annotations"][
            names.ANNOTATION_CONFIG_HASH
        ]

    def boot_file(self, config_hash):
        name = f"{self.manifest['metadata']['name']}-{config_hash}"
        (found,) = [
            each
            for each in self.children.values()
            if each["kind"] == "ConfigMap" and each["metadata"]["name"] == name
        ]
        return json.loads(found["data"][names.BOOT_FILE_NAME])

    def drafts(self):
        return {engine.path for engine in self.engines.values()}

    def edit(self, uri, adaptive=None, **more):
        self.manifest = copy.deepcopy(self.manifest)
        self.manifest["metadata"]["generation"] += 1
        self.manifest["spec"]["speculation"]["draft"] = {"uri": uri}
        if adaptive is not None:
            self.manifest["spec"]["speculation"]["adaptive"] = adaptive
        self.manifest["spec"] |= more

    def settle(self):
        """Reconcile until nothing is written any more."""
        for _ in range(10):
            before = copy.deepcopy(self.manifest["status"])
            decided = self.reconcile()
            if not decided.writes and self.manifest["status"] == before:
                return self.manifest["status"]
        raise AssertionError("does not come to rest")


@pytest.fixture
def world(example, live):
    made = World(example(replicas=REPLICAS), live)
    made.reconcile()
    made.settle()
    assert made.drafts() == {"/models/target/eagle3"}
    return made


def condition(reported, kind):
    (found,) = [each for each in reported["conditions"] if each["type"] == kind]
    return found["status"], found["reason"]


def test_running_engines_exchange_a_draft_of_the_same_claim(world):
    first = world.template_hash(world.deployment)
    world.edit(OTHER)
    reported = world.settle()
    assert world.replaced == 0
    assert world.drafts() == {"/models/target/eagle3-2"}
    assert world.template_hash(world.deployment) == first
    wanted = world.hash_of(world.manifest)
    assert wanted != first
    assert reported["configHash"] == wanted
    assert reported["draftExchange"] == {
        "uri": OTHER,
        "configHash": wanted,
        "state": "Exchanged",
        "exchanged": REPLICAS,
        "total": REPLICAS,
        "message": "",
        "pods": [],
    }
    assert condition(reported, "Progressing") == ("True", "NewReplicaSetAvailable")
    assert condition(reported, "Reconciling") == ("False", "AtRest")
    assert reported["updatedReplicas"] == REPLICAS


def test_a_pod_that_starts_later_begins_with_the_new_draft(world):
    world.edit(OTHER)
    world.settle()
    world.pods = world.pods[:-1]
    world.scale(REPLICAS)
    newest = world.pods[-1]["metadata"]["uid"]
    assert world.engines[newest].path == "/models/target/eagle3-2"
    assert world.settle()["draftExchange"]["state"] == "Exchanged"
    assert world.replaced == 0


def test_the_boot_file_keeps_the_old_draft_until_every_engine_uses_the_new_one(world):
    """An engine that restarts meanwhile begins with what is known to work, and is asked then."""
    own = world.template_hash(world.deployment)
    slow = next(iter(world.engines.values()))
    slow.is_reading = True
    world.edit(OTHER)
    reported = world.settle()
    assert world.boot_file(own)["speculation"]["draft_path"] == "/models/target/eagle3"
    assert reported["draftExchange"]["state"] == "Exchanging"
    assert reported["draftExchange"]["exchanged"] == reported["updatedReplicas"] == REPLICAS - 1
    assert reported["draftExchange"]["pods"] == [
        {"name": "chat-0", "state": "Reading", "message": ""}
    ]
    assert condition(reported, "Progressing") == ("True", "ExchangingDraft")
    assert condition(reported, "Reconciling") == ("True", "ExchangingDraft")
    assert condition(reported, "Ready") == ("True", "Updating")
    slow.is_reading = False
    slow.report = None
    reported = world.settle()
    assert reported["draftExchange"]["state"] == "Exchanged"
    boot = world.boot_file(own)
    assert boot["speculation"]["draft_path"] == "/models/target/eagle3-2"
    assert boot["config_hash"] == world.hash_of(world.manifest)


def test_a_draft_that_engines_cannot_read_leaves_the_old_one(world):
    """Neither pods nor their boot file change, and conditions have value, place and remedies."""
    own = world.template_hash(world.deployment)
    for engine in world.engines.values():
        engine.refuses = True
    world.edit(OTHER)
    reported = world.settle()
    world.waited_s = 1e6
    assert world.settle() == reported
    assert world.replaced == 0
    assert world.template_hash(world.deployment) == own
    assert world.drafts() == {"/models/target/eagle3"}
    assert world.boot_file(own)["speculation"]["draft_path"] == "/models/target/eagle3"
    exchange = reported["draftExchange"]
    assert exchange["state"] == "Refused"
    assert exchange["message"] == "chat-0 refuses the draft: lacks fc.weight"
    assert {pod["state"] for pod in exchange["pods"]} == {"Refused"}
    assert condition(reported, "Available")[0] == "True"
    for kind, expected in REFUSED.items():
        assert condition(reported, kind) == expected
    (message,) = [each["message"] for each in reported["conditions"] if each["type"] == "Stalled"]
    assert message == (
        f"spec.speculation.draft.uri {OTHER}: chat-0 refuses the draft: lacks fc.weight; repair "
        "the checkpoint, which engines read again every minute, or return to the draft in use"
    )


def table(up_hysteresis):
    return {
        "policy": "Ema",
        "batchSizes": [{"from": 1, "candidateSteps": [1, 3], "upHysteresis": up_hysteresis}],
    }


@pytest.mark.parametrize("is_repaired", [False, True])
def test_a_refused_draft_is_repaired_or_taken_back(world, is_repaired):
    refusing = list(world.engines.values())[-1]
    refusing.refuses = True
    world.edit(OTHER)
    assert world.settle()["draftExchange"]["exchanged"] == REPLICAS - 1
    refusing.refuses = False
    if not is_repaired:
        world.edit("pvc://models/eagle3")
    world.reconcile()  # engines answer after it
    reported = world.settle()
    assert world.replaced == 0
    assert condition(reported, "Ready") == ("True", "Serving")
    assert condition(reported, "Stalled") == ("False", "AsExpected")
    assert world.drafts() == {f"/models/target/{'eagle3-2' if is_repaired else 'eagle3'}"}


def test_a_table_reaches_engines_that_keep_the_old_draft(world):
    world.edit("pvc://models/eagle3", adaptive=table(up_hysteresis=0.1))
    world.settle()
    own = world.template_hash(world.deployment)
    before = world.boot_file(own)
    for engine in world.engines.values():
        engine.refuses = True
    world.edit(OTHER)
    world.settle()
    assert world.boot_file(own) == before
    world.edit(OTHER, adaptive=table(up_hysteresis=0.3))
    world.settle()
    after = world.boot_file(own)
    assert after["speculation"]["table"] != before["speculation"]["table"]
    del after["speculation"]["table"], before["speculation"]["table"]
    assert after == before
    assert world.template_hash(world.deployment) == own


def test_a_lost_boot_file_is_written_with_the_wanted_draft(world):
    own = world.template_hash(world.deployment)
    next(iter(world.engines.values())).is_reading = True
    world.edit(OTHER)
    world.settle()
    lost = next(each for each in world.children.values() if each["kind"] == "ConfigMap")
    del world.children[child_id(lost)]
    world.settle()
    assert world.boot_file(own)["speculation"]["draft_path"] == "/models/target/eagle3-2"


@pytest.mark.parametrize("back", [False, True])
def test_a_draft_that_needs_a_start_replaces_pods_and_the_status_has_the_reason(world, back):
    refusing = list(world.engines.values())[-1]
    refusing.needs_restart = True
    first = world.template_hash(world.deployment)
    world.edit(OTHER)
    reported = world.settle()
    assert world.replaced == 1
    assert world.template_hash(world.deployment) == world.hash_of(world.manifest) != first
    assert world.drafts() == {"/models/target/eagle3-2"}
    assert reported["draftExchange"]["state"] == "ReplacingPods"
    assert reported["draftExchange"]["message"] == "chat-2 cannot exchange its draft: another shape"
    if back:
        world.edit("pvc://models/eagle3")
        assert world.settle()["draftExchange"]["state"] == "Exchanged"
        assert world.replaced == 1
        assert world.drafts() == {"/models/target/eagle3"}


def test_engines_of_several_ranks_are_replaced_for_another_draft(world):
    world.edit("pvc://models/eagle3", parallelism={"tensor": 2})
    assert "draftExchange" not in world.settle()
    assert world.replaced == 1
    world.edit(OTHER)
    reported = world.settle()
    assert world.replaced == 2
    assert world.drafts() == {"/models/target/eagle3-2"}
    assert reported["draftExchange"]["state"] == "ReplacingPods"
    assert reported["draftExchange"]["message"] == (
        "engines of several ranks (parallelism.tensor) exchange no draft while they run"
    )
    assert not any(engine.report for engine in world.engines.values()), "none was asked"


def test_an_engine_that_takes_longer_than_a_start_is_replaced(world):
    for engine in world.engines.values():
        engine.is_reading = True
    world.edit(OTHER)
    assert world.settle()["draftExchange"]["state"] == "Exchanging"
    world.waited_s = 1801.0
    reported = world.settle()
    assert world.replaced == 1
    assert "has not exchanged its draft within 1800 s" in reported["draftExchange"]["message"]


def test_an_edit_is_taken_back_in_the_middle(world):
    slow = next(iter(world.engines.values()))
    slow.is_reading = True
    world.edit(OTHER)
    world.settle()
    assert world.drafts() == {"/models/target/eagle3", "/models/target/eagle3-2"}
    world.edit("pvc://models/eagle3")
    slow.report = None
    world.settle()
    assert world.drafts() == {"/models/target/eagle3"}
    assert world.replaced == 0


def test_every_exchange_follows_the_one_before(world):
    own = world.template_hash(world.deployment)
    for uri in (OTHER, "pvc://models/third", OTHER, "pvc://models/eagle3"):
        world.edit(uri)
        reported = world.settle()
        assert reported["draftExchange"]["uri"] == uri
        assert world.drafts() == {f"/models/target/{uri.rpartition('/')[2]}"}
        path = world.boot_file(own)["speculation"]["draft_path"]
        assert path == f"/models/target/{uri.rpartition('/')[2]}"
    assert world.replaced == 0
    assert names.ANNOTATION_CONFIG_HASH not in world.deployment["metadata"]["annotations"]


def test_another_setting_after_an_exchange_replaces_pods_once(world):
    world.edit(OTHER)
    world.settle()
    world.edit(OTHER, pageSize=32)
    world.settle()
    assert world.replaced == 1
    assert world.template_hash(world.deployment) == world.hash_of(world.manifest)
    assert len([each for each in world.children.values() if each["kind"] == "ConfigMap"]) == 1
    assert world.drafts() == {"/models/target/eagle3-2"}


@pytest.mark.parametrize(
    ("uri", "more", "reason"),
    [
        ("hf://org/draft", {}, "a draft of hf:// is downloaded before an engine starts"),
        ("pvc://others/eagle3", {}, "the running pods do not mount the PVC others"),
        ("oci://registry.example/draft:1", {}, "an image is mounted when a pod starts"),
        ("file:///srv/draft", {}, "a folder of a node is mounted when a pod starts"),
        (OTHER, {"pageSize": 32}, "other settings that need a restart change too"),
    ],
)
def test_a_draft_that_running_pods_cannot_reach_replaces_them(world, uri, more, reason):
    world.edit(uri, **more)
    reported = world.settle()
    assert world.replaced == 1
    assert reported["draftExchange"]["state"] == "ReplacingPods"
    assert reported["draftExchange"]["message"] == reason


def test_pods_that_are_being_replaced_are_not_asked(world):
    world.deployment["status"]["updatedReplicas"] = 1
    world.edit(OTHER)
    world.settle()
    assert world.replaced == 1


def test_without_replicas_the_next_pods_begin_with_the_draft(world):
    world.edit("pvc://models/eagle3", replicas=0)
    world.pods, world.engines = [], {}
    world.settle()
    world.edit(OTHER)
    world.settle()
    assert world.template_hash(world.deployment) == world.hash_of(world.manifest)


def test_an_operator_that_restarts_learns_the_drafts_again(world):
    """What engines answered is in memory alone."""
    own = world.template_hash(world.deployment)
    world.edit(OTHER)
    world.settle()
    for engine in world.engines.values():
        engine.report = None
    decided = world.reconcile()
    assert not decided.writes
    assert {engine.report.path for engine in world.engines.values()} == {"/models/target/eagle3-2"}
    assert world.template_hash(world.deployment) == own


def test_pods_show_the_configuration_that_they_report(world):
    world.edit(OTHER)
    world.settle()
    observed = Observed(world.manifest, {}, tuple(world.pods))
    answers = {uid: DraftAnswer(engine.report) for uid, engine in world.engines.items()}
    shown = presented(replace(observed, drafts=answers)).pods
    hashes = {pod["metadata"]["annotations"][names.ANNOTATION_CONFIG_HASH] for pod in shown}
    assert hashes == {world.hash_of(world.manifest)}
    assert presented(observed).pods == observed.pods
