"""A small world around the real plan: an API server's memory, Deployments' pods, engines' counters.

Every step reads what is stored; `end_operator` drops what was only in memory.
"""

import copy
import json
import math
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from specdecode_api import names
from specdecode_api.metrics import table_hash
from specdecode_api.report import DraftInUse
from specdecode_api.speculation import Policy
from specdecode_api.table import TableEntry
from specdecode_api.v1alpha1 import SpecDecodeTrial, SpecDecodeTrialStatus
from specdecode_operator import trial
from specdecode_operator.fleet import BucketTotals, PositionTotals, Reading
from specdecode_operator.fleet.sums import add
from specdecode_operator.judge.evidence import ArmEvidence, ArmKey, RequestSums, Stratum
from specdecode_operator.objects.kinds import CONFIG_MAP, DEPLOYMENT, Manifest, child_id
from specdecode_operator.objects.observed import DraftAnswer, Observed
from specdecode_operator.plan.plan import plan
from specdecode_operator.settings import Settings
from specdecode_operator.status.outcome import Outcome
from specdecode_operator.status.status import status
from specdecode_operator.trial.record.revisions import readable
from specdecode_operator.trial.record.stored import recorded
from specdecode_operator.trial.strategies.context import EngineSnapshot, role_of
from specdecode_operator.updates.draft_exchange import asked_pods, presented

STRATUM = Stratum(4, "greedy", "free", "short")
BEGIN_S = 1_700_000_000.0
SETTINGS = Settings(engine_image="specdecode-engine:test")

QUICK = {
    "minRequests": 40,
    "minStratumRequests": 5,
    "minDuration": "1m",
    "maxDuration": "25m",
    "warmUp": "10s",
    "coolDown": "1m",
}


@dataclass
class Engine:
    """One pod's engine: which table it runs, and what it has counted."""

    pod: Manifest
    entries: dict[str, TableEntry]
    policy: Policy
    start_s: float
    counted: dict[ArmKey, ArmEvidence] = field(default_factory=dict)
    slowness: float = 1.0
    strata: tuple[Stratum, ...] = (STRATUM,)
    lasting: dict[str, TableEntry] = field(default_factory=dict)
    """The last table without expiry, where another one runs until `expires_s`."""
    expires_s: float | None = None
    runs: str = ""
    """Config hash of what it runs: of its boot file, or of the draft that it exchanged since."""
    report: DraftInUse | None = None
    """What it answered about its draft; None: it was not asked."""

    def exchange(self, wanted):
        """Exchange the draft, as `PUT /speculation/draft` does."""
        self.runs = wanted.config_hash
        self.report = DraftInUse(path=wanted.path, config_hash=wanted.config_hash)

    def put(self, entries, now_s, expires_after_s):
        """Take up a table, as `PUT /speculation/table` does."""
        if self.expires_s is None:
            self.lasting = self.entries
        self.entries = dict(entries)
        self.expires_s = None if expires_after_s is None else now_s + expires_after_s

    def expire(self, now_s):
        if self.expires_s is not None and now_s >= self.expires_s:
            self.entries, self.expires_s = self.lasting, None

    @property
    def arm(self):
        return ArmKey(self.runs, table_hash(self.policy, self.entries))

    def serve(self, requests, speed, accept, failed, rng):
        """Answer requests at `speed` seconds per token and `accept` tokens per step."""
        strata: dict[Stratum, RequestSums] = {}
        for number in range(requests):
            tokens = rng.randint(30, 60)
            rounds = max(1.0, tokens / accept * rng.uniform(0.9, 1.1))
            seconds = tokens * speed * self.slowness * rng.uniform(0.85, 1.15)
            stratum = self.strata[number % len(self.strata)]
            strata[stratum] = strata.get(stratum, RequestSums()) + RequestSums(
                1, tokens, rounds, seconds
            )
        new = ArmEvidence(strata=strata, answered_requests=requests, failed_requests=failed)
        self.counted[self.arm] = add(self.counted.get(self.arm, ArmEvidence()), new)


class World:
    """Steps of time, each followed by one reconcile as an operator makes it."""

    def __init__(self, manifest, seed=1):
        self.resource = manifest
        self.children = {}
        self.engines = {}
        self.now_s = self.begin_s = BEGIN_S
        self.rng = random.Random(seed)
        self.speeds = {}  # draft steps of the first entry, or config hash, to seconds per token
        self.accepts = {}
        self.fails = {}
        self.is_silent = False
        self.refuses = ""
        self.is_read_only = False  # the API server refuses every write
        self.refuses_trials = False  # the API server refuses to write objects of trials
        self.cannot_start = set()  # config hashes
        self.start_s = 0.0  # until a new pod serves
        self.evicted = []  # pods, which stay until somebody deletes them
        self.fewest_serving = None  # stable pods, since it was set to a number
        self.has_room = {names.ROLE_STABLE, names.ROLE_CANARY, names.ROLE_BASELINE}
        self.nominated = ""
        self.requests_per_s = 2.0
        self.seconds_by_num_steps = {}
        self.statuses = []
        self.trials = {}
        self.revisions = {}
        self.settings = SETTINGS
        self.dry_runs: dict[str, str] = {}
        self.invalid = ""  # why the API server refuses candidates
        self.memory = None
        self._latest_s = -math.inf
        self._numbers = iter(range(1, 10**6))

    # --- what an operator does

    @property
    def observed(self):
        pods = [*self.evicted, *(engine.pod for engine in self.engines.values())]
        pods.sort(key=lambda pod: pod["metadata"]["name"])
        trials = tuple(self.trials.values())
        revisions = tuple(self.revisions.values())
        at = datetime.fromtimestamp(self.now_s, UTC)
        answers = {
            engine.pod["metadata"]["uid"]: DraftAnswer(engine.report)
            for engine in self.engines.values()
        }
        found = Observed(
            self.resource,
            dict(self.children),
            tuple(pods),
            at=at,
            trials=trials,
            revisions=revisions,
            drafts=answers,
            dry_runs=self.dry_runs,
        )
        return presented(found)

    @property
    def record(self):
        return recorded(self.observed, readable(self.observed), self.memory)

    @property
    def status(self):
        return self.resource.get("status") or {}

    def reconcile(self):
        observed = self.observed
        snapshot = self._look(observed)
        decided = plan(observed, self.settings, self.now_s, snapshot, self.memory)
        assert decided.refused is None, decided.refused
        self.memory = decided.memory
        if decided.step is not None and (wanted := decided.step.dry_run) is not None:
            self.dry_runs = {wanted.key: self.invalid}
        if self.is_read_only:
            return decided
        for write in decided.writes:
            self._apply(write.manifest)
        if not self.refuses_trials:
            self._write_objects(decided.objects)
            for write in decided.trial_writes:
                self._apply(write.manifest)
        for child in decided.prunes:
            self.children.pop(child_id(child))
        now = datetime.fromtimestamp(self.now_s, UTC)
        answers = tuple(self.children[child_id(each.manifest)] for each in decided.writes)
        outcome = Outcome(answers, is_state_stored=not self.refuses_trials)
        reported = json.loads(json.dumps(status(observed, decided, outcome, now)))
        self.resource = {**self.resource, "status": reported}
        self.statuses.append(reported)
        self._run_controllers()
        self._exchange_drafts(observed, decided.exchange)
        return decided

    def _exchange_drafts(self, observed, exchange):
        if exchange is None or exchange.wanted is None:
            return
        asked = {pod["metadata"]["uid"] for pod in asked_pods(observed, exchange.wanted)}
        for engine in self._serving():
            if engine.pod["metadata"]["uid"] in asked:
                engine.exchange(exchange.wanted)

    def _write_objects(self, objects):
        for manifest in objects.revisions:
            self.revisions[manifest["metadata"]["name"]] = copy.deepcopy(manifest)
        for manifest in objects.creates:
            self.create_trial(manifest)
        for manifest, owned in objects.adoptions:
            self.trials[manifest["metadata"]["name"]]["metadata"] |= owned
        adopted = [manifest for manifest, _ in objects.adoptions]
        for manifest, reported in objects.statuses:
            if manifest in adopted:
                continue
            SpecDecodeTrialStatus.from_resource(reported)
            stored = {"status": json.loads(json.dumps(reported))}
            name = manifest["metadata"]["name"]
            self.trials[name] = {**self.trials[name], **stored}
        for manifest in objects.deletes:
            kept = self.trials if manifest["kind"] == names.KIND_TRIAL else self.revisions
            del kept[manifest["metadata"]["name"]]

    def create_trial(self, manifest):
        """Create a SpecDecodeTrial, of the operator or of a user."""
        name = manifest["metadata"]["name"]
        assert name not in self.trials
        live = copy.deepcopy(manifest)
        live["metadata"] |= {"generation": 1, "uid": f"uid-of-{name}"}
        read = SpecDecodeTrial.from_resource(live).spec
        live["spec"] = read.model_dump(by_alias=True, exclude_none=True, mode="json")
        live["spec"]["candidate"] = copy.deepcopy(manifest["spec"]["candidate"])
        self.trials[name] = live

    def command(self, name, **spec):
        """Change the spec of a SpecDecodeTrial as a person does."""
        self.trials[name] = copy.deepcopy(self.trials[name])
        self.trials[name]["spec"] |= spec
        self.trials[name]["metadata"]["generation"] += 1

    def end_operator(self):
        """The next step is one of a new process."""
        self.memory = None
        self.dry_runs = {}
        self._latest_s = -math.inf

    def _look(self, observed):
        since_s = self.now_s - self._latest_s
        look = trial.next_look(observed, self.record, self.now_s, since_s)
        if look is None or look.due_s > 0:
            return None
        self._latest_s = self.now_s
        return self.look_at(look)

    def look_at(self, look):
        """What `EnginePoller.observe` returns for these engines."""
        refusals = {}
        wanted = look.tables
        taking = {pod["metadata"]["name"] for pod in look.pods}
        serving = [each for each in self._serving() if each.pod["metadata"]["name"] in taking]
        for engine in serving:
            entries = wanted.get(engine.pod["metadata"]["uid"])
            if entries is None:
                continue
            if self.refuses and entries != engine.entries:
                refusals[engine.pod["metadata"]["name"]] = self.refuses
            else:
                engine.put(entries, self.now_s, look.expires_after_s)
        if self.is_silent:
            failures = {e.pod["metadata"]["name"]: "does not answer" for e in serving}
            return EngineSnapshot(self.now_s, {}, failures, refusals)
        readings = {engine.pod["metadata"]["uid"]: self._read(engine) for engine in serving}
        return EngineSnapshot(self.now_s, readings, {}, refusals)

    def _read(self, engine):
        rounds, positions = self._figures()
        return Reading(
            engine.pod["metadata"]["uid"],
            engine.start_s,
            engine.arm,
            {engine.arm: ArmEvidence()} | engine.counted,
            rounds,
            positions,
            {"policy": engine.policy.value, "version": "test"},
        )

    def _figures(self):
        """Decode steps by draft steps and acceptance by position, as of an engine that probes."""
        if not self.seconds_by_num_steps:
            return {}, {}
        prepared = {1, 3, 5}
        rounds = {
            (4, steps): BucketTotals(2000.0, 10_000.0, 2000.0 * self.seconds_by_num_steps[steps])
            for steps in prepared
        }
        positions = {(4, place): PositionTotals(20_000.0, 16_000.0) for place in range(1, 6)}
        return rounds, positions

    # --- what a cluster does

    def _apply(self, manifest):
        live = copy.deepcopy(manifest)
        before = self.children.get(child_id(manifest))
        generation = before["metadata"].get("generation", 0) if before else 0
        live["metadata"] |= {
            "resourceVersion": str(next(self._numbers)),
            "uid": f"uid-{manifest['metadata']['name']}",
        }
        live["metadata"]["generation"] = generation + 1
        if before is not None and "status" in before:
            live["status"] = before["status"]
        self.children[child_id(manifest)] = live

    def _deployments(self):
        return [each for each in self.children.values() if each["kind"] == DEPLOYMENT.kind]

    def _run_controllers(self):
        alive = {each["metadata"]["name"]: each for each in self._deployments()}
        for name, engine in list(self.engines.items()):
            owner = engine.pod["metadata"]["owner"]
            if owner not in alive:
                del self.engines[name]
        for name, deployment in alive.items():
            self._roll(name, deployment)

    def evict(self, name):
        """End a pod as a node does that is low on memory; its Deployment makes another one."""
        pod = self.engines.pop(name).pod
        self.evicted.append({**pod, "status": {"phase": "Failed", "reason": "Evicted"}})

    def _roll(self, name, deployment):
        """Replace pods of another template as soon as new ones serve, or in place; and scale."""
        template = deployment["spec"]["template"]
        wanted_hash = template["metadata"]["annotations"][names.ANNOTATION_CONFIG_HASH]
        replicas = deployment["spec"]["replicas"]
        if deployment["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 0:
            self._remove(self._of_deployment(name, template, is_new=False))
        mine = self._of_deployment(name, template, is_new=True)
        self._remove(mine[replicas:])
        for _ in range(replicas - len(mine)):
            self._start_pod(name, template, wanted_hash)
        new = self._of_deployment(name, template, is_new=True)
        ready = [each for each in new if each in self._serving()]
        old = self._of_deployment(name, template, is_new=False)
        self._remove(old[replicas - len(ready) :] if len(ready) < replicas else old)
        left = self._of_deployment(name, template, is_new=False)
        available = [each for each in (*new, *left) if each in self._serving()]
        deployment["status"] = {
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": len(new) + len(left),
            "updatedReplicas": len(new),
            **dict.fromkeys(("readyReplicas", "availableReplicas"), len(available)),
        }
        if name == self.resource["metadata"]["name"] and self.fewest_serving is not None:
            self.fewest_serving = min(self.fewest_serving, len(available))

    def _of_deployment(self, name, template, is_new):
        mine = [e for e in self.engines.values() if e.pod["metadata"]["owner"] == name]
        return [each for each in mine if (_made_for(each.pod) == _made_for(template)) is is_new]

    def _remove(self, engines):
        for engine in engines:
            del self.engines[engine.pod["metadata"]["name"]]

    def _start_pod(self, owner, template, config_hash):
        number = next(self._numbers)
        pod = copy.deepcopy(template)
        pod["metadata"] |= {
            "name": f"{owner}-{number:06d}",
            "namespace": "default",
            "uid": f"pod-{number}",
            "owner": owner,
            "creationTimestamp": self._timestamp(),
        }
        role = role_of(pod)
        if role not in self.has_room:
            waits = {"type": "PodScheduled", "status": "False", "message": "Insufficient gpu"}
            pod["status"] = {"conditions": [waits | {"lastTransitionTime": self._timestamp()}]}
            if self.nominated:
                pod["status"]["nominatedNodeName"] = self.nominated
        elif config_hash in self.cannot_start:
            ended = {"exitCode": 1, "message": "the draft's vocabulary is another"}
            engine = {
                "name": "engine", "ready": False, "restartCount": 3,
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": ended},
            }  # fmt: skip
            pod["status"] = {"containerStatuses": [engine]}
        else:
            pod["status"] = {"conditions": [self._ready()] if not self.start_s else []}
        boot = self._boot(config_hash)
        entries = boot.speculation.tuned or boot.speculation.entries
        self.engines[pod["metadata"]["name"]] = Engine(
            pod, dict(entries), boot.speculation.policy, self.now_s, runs=boot.config_hash
        )

    def _timestamp(self):
        return datetime.fromtimestamp(self.now_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _ready(self):
        return {"type": "Ready", "status": "True", "lastTransitionTime": self._timestamp()}

    def _start(self):
        """Pods that have had their time begin to serve."""
        for engine in self.engines.values():
            status = engine.pod["status"]
            is_starting = status == {"conditions": []}
            if is_starting and self.now_s - engine.start_s >= self.start_s:
                engine.pod = {**engine.pod, "status": {"conditions": [self._ready()]}}

    def _boot(self, config_hash):
        from specdecode_api.boot import EngineBoot

        name = f"{self.resource['metadata']['name']}-{config_hash}"
        files = next(
            each
            for each in self.children.values()
            if each["kind"] == CONFIG_MAP.kind and each["metadata"]["name"] == name
        )
        return EngineBoot.model_validate_json(files["data"][names.BOOT_FILE_NAME])

    def _serving(self):
        return [
            engine
            for engine in self.engines.values()
            if any(
                each["type"] == "Ready" and each["status"] == "True"
                for each in engine.pod["status"].get("conditions", ())
            )
        ]

    # --- time

    def num_steps(self, engine):
        """Deepest candidate at a batch size of four, which is what all requests see."""
        bounds = sorted((int(bound) for bound in engine.entries if int(bound) <= 4), reverse=True)
        return max(engine.entries[str(bounds[0])].candidate_steps) if bounds else None

    def speed(self, engine):
        config = engine.runs
        return self.speeds.get(config, self.speeds.get(self.num_steps(engine), 0.02))

    def pass_time(self, seconds):
        self.now_s += seconds
        self._start()
        serving = self._serving()
        for engine in serving:
            engine.expire(self.now_s)
            count = int(self.requests_per_s * seconds / len(serving) * self.rng.uniform(0.8, 1.2))
            config = engine.runs
            accept = self.accepts.get(config, 3.0)
            engine.serve(count, self.speed(engine), accept, self.fails.get(config, 0), self.rng)

    def run(self, seconds=4000.0, step_s=10.0, until=None):
        """Continue until something holds; returns whether it did."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.pass_time(step_s)
            self.reconcile()
            if until is not None and until(self):
                return True
        return until is None

    def run_to_end(self):
        """Until no trial runs; it begins within a step."""
        self.reconcile()
        assert self.record.trial is not None or self.run(60, until=lambda w: w.record.trial)
        assert self.run(until=lambda w: w.record.trial is None), self.status.get("activeTrial")
        return self.record.history[0]

    def edit(self, **spec):
        """Edit the spec as a person does."""
        self.resource = copy.deepcopy(self.resource)
        self.resource["spec"] |= spec
        self.resource["metadata"]["generation"] += 1

    def annotate(self, name, value):
        self.resource = copy.deepcopy(self.resource)
        self.resource["metadata"].setdefault("annotations", {})[name] = value

    def restart(self, engine):
        """A container starts again: counters at 0, the boot file's table."""
        config = engine.pod["metadata"]["annotations"][names.ANNOTATION_CONFIG_HASH]
        boot = self._boot(config)
        engine.entries = dict(boot.speculation.tuned or boot.speculation.entries)
        engine.counted = {}
        engine.runs, engine.report = boot.config_hash, None
        engine.expires_s = None
        engine.start_s = self.now_s


def _made_for(pod):
    """Configuration and block of a trial that a pod or a template is made for."""
    annotations = pod["metadata"]["annotations"]
    keys = (names.ANNOTATION_CONFIG_HASH, names.ANNOTATION_BLOCK)
    return tuple(annotations.get(key) for key in keys)


def speculation(*steps, policy="Goodput", **bounds):
    table = [{"from": 1, "candidateSteps": list(steps)}]
    return {
        "algorithm": "STANDALONE",
        "draft": {"uri": "pvc://models/draft"},
        "adaptive": {"policy": policy, "batchSizes": table},
        **bounds,
    }


@pytest.fixture
def speculate():
    return speculation


@pytest.fixture
def world(example):
    """A world with a guarded resource of two replicas, its first configuration serving."""

    def make(mode="Manual", guarded=True, replicas=2, seed=1, serving=None, **rollout):
        guard = QUICK | rollout.pop("guard", {})
        manifest = example(
            "standalone",
            replicas=replicas,
            speculation=speculation(1, 3, 5),
            serving=serving or {},
            rollout={
                "mode": mode,
                "editPolicy": "Guarded" if guarded else "Immediate",
                "guard": guard,
                "switchback": {"block": "20s", "washout": "2s", "minPairs": 3},
                **rollout,
            },
        )
        made = World(manifest, seed)
        made.reconcile()
        made.reconcile()
        return made

    return make


@pytest.fixture
def try_out(speculate):
    """Create a SpecDecodeTrial as a user does."""

    def create(made, name="mine", candidate=None, **spec):
        table = {"speculation": {"adaptive": speculate(3)["adaptive"]}}
        made.create_trial(
            {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND_TRIAL,
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"deployment": "chat-standalone", "candidate": candidate or table, **spec},
            }
        )

    return create
